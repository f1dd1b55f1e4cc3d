package testnet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/smcgw/smcgw/lab/apps"
)

// AppCommand prepares one of the programs of package apps; see there for the arguments. The process's TestMain or main
// must call [apps.Init].
func (h *Host) AppCommand(ctx context.Context, args ...string) *Cmd {
	h.mu.Lock()
	through := h.through
	h.mu.Unlock()
	words := append(append(slices.Clone(through), "/proc/self/exe"), args...)
	cmd := h.Command(ctx, words[0], words[1:]...)
	if len(through) > 0 { // /proc/self would be that program
		cmd.Args[len(through)] = fmt.Sprintf("/proc/%d/exe", os.Getpid())
	}
	// The child resolves /proc/self/exe before it executes, so it runs this program even if its file has been deleted,
	// as `go test` may have done.
	cmd.Env = append(os.Environ(), apps.Variable+"=1",
		// Otherwise a test binary with the race detector sleeps a second before it exits.
		"GORACE=atexit_sleep_ms=0")
	return cmd
}

// Through makes a program such as `ip vrf exec` run the apps of the host from now on. It gets the app and its arguments
// after its own arguments.
func (h *Host) Through(program ...string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.through = program
}

// StartApp starts an app in the background of the host. If it is a server, StartApp returns when it is ready.
func (h *Host) StartApp(args ...string) (*Proc, error) {
	p, err := h.StartCmd(h.AppCommand(context.Background(), args...))
	if err != nil || !strings.HasPrefix(args[0], "serve") {
		return p, err
	}
	want := 0
	for _, arg := range args[1:] {
		if strings.Contains(arg, "=") && !strings.HasPrefix(arg, "-") {
			want++
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	_, err = p.WaitEvents(ctx, want, func(e apps.Event) bool { return e.Event == "listening" })
	return p, err
}

// RunApp runs a client app on the host to its end and returns its result. A failure of the app itself is part of the
// result, not of the error.
func (h *Host) RunApp(ctx context.Context, args ...string) (apps.Event, error) {
	cmd := h.AppCommand(ctx, args...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	for _, e := range parseEvents(string(out)) {
		if e.Event == "result" {
			return e, nil
		}
	}
	return apps.Event{}, fmt.Errorf("%s on %s: no result: %w: %s%s", strings.Join(args, " "), h.Name, err, out, stderr.String())
}

func parseEvents(text string) []apps.Event {
	var events []apps.Event
	for line := range strings.Lines(text) {
		var e apps.Event
		if json.Unmarshal([]byte(line), &e) == nil && e.Event != "" {
			events = append(events, e)
		}
	}
	return events
}

// Events returns what an app has reported so far.
func (p *Proc) Events() []apps.Event { return parseEvents(p.Output()) }

// WaitEvents waits until an app has reported n matching events, and returns all matching ones.
func (p *Proc) WaitEvents(ctx context.Context, n int, match func(apps.Event) bool) ([]apps.Event, error) {
	for {
		changed, ended := p.out.state()
		var found []apps.Event
		for _, e := range p.Events() {
			if match(e) {
				found = append(found, e)
			}
		}
		switch {
		case len(found) >= n:
			return found, nil
		case ended:
			return found, fmt.Errorf("%s ended after %d of %d events:\n%s", p.Name, len(found), n, p.Output())
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return found, fmt.Errorf("%s: %d of %d events: %w:\n%s", p.Name, len(found), n, context.Cause(ctx), p.Output())
		}
	}
}

// Ask makes the app hold execute a command on its connections, and returns the result. The app executes connect by
// itself; Ask returns its result once it has.
func (p *Proc) Ask(ctx context.Context, command string) (apps.Event, error) {
	done := func(e apps.Event) bool { return e.Event == "done" && e.Mode == command }
	before := 0
	if command != "connect" {
		for _, e := range p.Events() {
			if done(e) {
				before++
			}
		}
		if err := p.Send(command); err != nil {
			return apps.Event{}, err
		}
	}
	all, err := p.WaitEvents(ctx, before+1, done)
	if err != nil {
		return apps.Event{}, err
	}
	return all[before], nil
}

// StartReady starts a program in the background of the host and waits until it prints that it is ready.
func (h *Host) StartReady(says string, program ...string) (*Proc, error) {
	p, err := h.Start(program[0], program[1:]...)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	return p, p.WaitOutput(ctx, says)
}

// What servers print when they are ready.
const (
	RedisReady  = "eady to accept connections"
	IPerf3Ready = "Server listening"
	NginxReady  = "start worker process "
)

// RedisServer returns the command line of an ordinary redis-server that writes nothing to disk.
func RedisServer(port string, bind ...string) []string {
	return append([]string{
		"redis-server", "--port", port, "--protected-mode", "no", "--save", "", "--appendonly", "no", "--daemonize", "no",
		"--dir", os.TempDir(), "--bind",
	}, bind...)
}

// Redis starts a redis-server on all addresses of the host, and waits until it is ready.
func (h *Host) Redis(port uint16) (*Proc, error) {
	return h.StartReady(RedisReady, RedisServer(strconv.Itoa(int(port)), "*", "-::*")...)
}

// RedisBenchmark runs redis-benchmark on the host and returns requests per second by the name of the test, such as
// "GET".
func (h *Host) RedisBenchmark(ctx context.Context, server netip.AddrPort, args ...string) (map[string]float64, error) {
	args = append([]string{"-h", server.Addr().String(), "-p", strconv.Itoa(int(server.Port())), "--csv"}, args...)
	out, err := h.Run(ctx, "redis-benchmark", args...)
	if err != nil {
		return nil, err
	}
	return ParseRedis(out)
}

// IPerf3Server starts an iperf3 server on the host.
func (h *Host) IPerf3Server(port uint16) (*Proc, error) {
	return h.StartReady(IPerf3Ready, "iperf3", "-s", "-p", strconv.Itoa(int(port)), "--forceflush")
}

// webServer configures nginx as a package installs it, except for files and logs. It has one worker: with two, chance
// decides how many connections each of them accepts, and thereby the rate.
const webServer = `daemon off; %[3]s
worker_processes 1;
pid %[1]s/nginx.pid;
error_log stderr notice;
events { worker_connections 1024; }
http {
  access_log off;
  client_body_temp_path %[1]s;
  proxy_temp_path %[1]s;
  fastcgi_temp_path %[1]s;
  uwsgi_temp_path %[1]s;
  scgi_temp_path %[1]s;
  keepalive_requests 10000000;
  sendfile on;
  tcp_nopush on;
  server { listen %[2]s; root %[1]s; location = / { return 200 "one answer of some bytes\n"; } }
}
`

// Nginx creates a directory for an nginx that listens on an address, and returns its command line. It serves a short
// answer, and files of 1 KiB and 1 MiB. Its worker runs as the given user, or as the built-in one if that is empty.
func Nginx(dir, listen, user string) ([]string, error) {
	if user != "" {
		user = "user " + user + ";"
	}
	err := os.Mkdir(dir, 0o755)
	for name, text := range map[string][]byte{
		"1k": make([]byte, 1<<10), "1m": make([]byte, 1<<20), "nginx.conf": fmt.Appendf(nil, webServer, dir, listen, user),
	} {
		err = errors.Join(err, os.WriteFile(filepath.Join(dir, name), text, 0o644))
	}
	return []string{"nginx", "-p", dir, "-c", filepath.Join(dir, "nginx.conf")}, err
}

// IPerf3 runs an iperf3 client on the host; args are added to its command line.
func (h *Host) IPerf3(ctx context.Context, server netip.AddrPort, args ...string) (IPerf3, error) {
	args = append([]string{"-J", "-c", server.Addr().String(), "-p", strconv.Itoa(int(server.Port()))}, args...)
	cmd := h.Command(ctx, "iperf3", args...)
	out, runErr := cmd.Output() // errors are in the JSON, with exit status 1
	r, err := ParseIPerf3(string(out))
	if errors.Is(err, ErrOutput) {
		err = errors.Join(err, runErr)
	}
	return r, err
}
