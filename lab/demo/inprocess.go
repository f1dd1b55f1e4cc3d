package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/smcgw/smcgw/lab/testnet"
)

// RunInProcess shows how smcgw run promotes programs of this machine, over loopback and without any privilege: each
// work with plain TCP and with the library, in turns. It uses a broker and files of its own. It returns ErrExpectation
// if a line of the table is not as expected, and ErrNoPrograms if there is no line.
func RunInProcess(ctx context.Context, opts Options) (err error) {
	s := &processShow{Options: opts.withDefaults(), ctx: ctx}
	s.report.out = s.Out
	if s.dir, err = os.MkdirTemp("", "smcgw-demo-"); err != nil {
		return fmt.Errorf("demo: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(s.dir)) }()
	var missing []string
	for _, w := range processWorks {
		if lacking := w.lacking(); len(lacking) > 0 {
			missing = append(missing, lacking...)
			continue
		}
		l, err := s.compare(w)
		if err != nil {
			return err
		}
		s.report.add(l)
	}
	if len(missing) > 0 {
		s.say("not shown, for want of a program: install the packages %s", strings.Join(unique(missing), ", "))
	}
	if len(s.report.lines) == 0 {
		return ErrNoPrograms
	}
	return s.report.print()
}

// processShow is the demonstration of the in-process way.
type processShow struct {
	Options
	ctx    context.Context
	dir    string
	report table
}

// processWork is a server and a client of it, both ordinary programs.
type processWork struct {
	name, unit string
	packages   []string // Debian packages of the programs
	programs   []string
	server     func(s *processShow, port string) ([]string, error)
	client     func(port string) []string
	rate       func(out string) (float64, error)
}

var processWorks = []processWork{
	{
		name: "iperf3, one stream", unit: "Gbit/s", packages: []string{"iperf3"}, programs: []string{"iperf3"},
		server: func(_ *processShow, port string) ([]string, error) {
			return []string{"iperf3", "-s", "-p", port}, nil
		},
		client: func(port string) []string { return []string{"iperf3", "-J", "-c", "127.0.0.1", "-p", port, "-t", "2"} },
		rate:   iperfRate,
	},
	redisPair("redis GET, 50 clients", "-c", "50", "-n", "50000"),
	redisPair("redis GET -P 16, 50 clients", "-c", "50", "-n", "300000", "-P", "16"),
	webPair("nginx, 1 KiB, 16 connections", "/1k", "16"),
	webPair("nginx, 1 MiB, 4 connections", "/1m", "4"),
}

func redisPair(name string, args ...string) processWork {
	return processWork{
		name: name, unit: "kreq/s", packages: []string{"redis-server", "redis-tools"}, programs: []string{"redis-server", "redis-benchmark"},
		server: func(_ *processShow, port string) ([]string, error) {
			return testnet.RedisServer(port, "127.0.0.1"), nil
		},
		client: func(port string) []string {
			return append([]string{"redis-benchmark", "-h", "127.0.0.1", "-p", port, "-t", "get", "--csv"}, args...)
		},
		rate: redisRate,
	}
}

func webPair(name, path, connections string) processWork {
	return processWork{
		name: name, unit: "kreq/s", packages: []string{"nginx-light", "wrk"}, programs: []string{"nginx", "wrk"},
		server: webServer,
		client: func(port string) []string {
			return []string{"wrk", "-t", "1", "-c", connections, "-d", "2s", "http://127.0.0.1:" + port + path}
		},
		rate: wrkRate,
	}
}

// webServer returns an nginx. As root, its worker stays root, like the broker.
func webServer(s *processShow, port string) ([]string, error) {
	user := ""
	if os.Geteuid() == 0 {
		user = "root"
	}
	return testnet.Nginx(filepath.Join(s.dir, "nginx-"+port), "127.0.0.1:"+port, user)
}

// lacking returns the packages of missing programs.
func (w *processWork) lacking() (packages []string) {
	for _, p := range w.programs {
		if _, err := find(p); err != nil {
			return w.packages
		}
	}
	return nil
}

// find looks up a program, also where servers are, which is not in every user's $PATH.
func find(program string) (string, error) {
	path, err := exec.LookPath(program)
	if err != nil {
		return exec.LookPath(filepath.Join("/usr/sbin", program))
	}
	return path, nil
}

func unique(list []string) (out []string) {
	seen := map[string]bool{}
	for _, s := range list {
		if !seen[s] {
			out = append(out, s)
		}
		seen[s] = true
	}
	return out
}

// compare does a work in both ways, in turns, with one server for each.
func (s *processShow) compare(w processWork) (l line, err error) {
	s.say("%s: over loopback, %d rounds by plain TCP and by smcgw run", w.name, s.Rounds)
	l = line{name: w.name + ", one host", unit: w.unit, what: "promoted"}
	ports := map[bool]string{}
	for _, direct := range []bool{true, false} {
		end, port, err := s.serve(w, !direct)
		if err != nil {
			return l, err
		}
		defer end()
		ports[direct] = port
	}
	var sums promoted
	l.ok = true
	err = l.rounds(s.Rounds, func(direct bool) (float64, error) {
		ctx, cancel := context.WithTimeout(s.ctx, time.Minute)
		defer cancel()
		v, p, err := s.visit(ctx, w, ports[direct], !direct)
		sums.add(p)
		l.ok = l.ok && (direct || p.Promoted > 0 && p.Bytes > 0)
		return v, err
	})
	l.note = sums.String()
	return l, err
}

// serve starts the server of a work, with the library or without. end stops it.
func (s *processShow) serve(w processWork, run bool) (end func(), port string, err error) {
	if port, err = freePort(); err != nil {
		return nil, "", err
	}
	args, err := w.server(s, port)
	if err != nil {
		return nil, "", err
	}
	cmd, _, err := s.command(context.Background(), args, run)
	if err != nil {
		return nil, "", err
	}
	if err := cmd.Start(); err != nil {
		return nil, "", fmt.Errorf("%s: %w", args[0], err)
	}
	ended, ends := context.WithCancelCause(context.Background())
	go func() { ends(errors.Join(errServerEnded, cmd.Wait())) }()
	end = func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		select {
		case <-ended.Done():
		case <-time.After(5 * time.Second):
			_ = cmd.Process.Kill()
			<-ended.Done()
		}
	}
	if err := s.listening(ended, port); err != nil {
		end()
		return nil, "", fmt.Errorf("%s: %w", args[0], err)
	}
	return end, port, nil
}

// command prepares a program, with smcgw run or directly. The report of smcgw run goes into a file.
func (s *processShow) command(ctx context.Context, args []string, run bool) (cmd *exec.Cmd, report string, err error) {
	path, err := find(args[0])
	if err != nil {
		return nil, "", err
	}
	args = append([]string{path}, args[1:]...)
	if run {
		f, err := os.CreateTemp(s.dir, "report-")
		if err != nil {
			return nil, "", err
		}
		report = f.Name()
		_ = f.Close()
		args = append([]string{s.Executable, "run", "--json", "--report", report, "--"}, args...)
	}
	cmd = exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 2 * time.Second
	// A broker of its own rather than a daemon's or another run's.
	cmd.Env = append(os.Environ(), "XDG_RUNTIME_DIR="+s.dir, "SMCGW_SOCKET="+filepath.Join(s.dir, "none"))
	return cmd, report, nil
}

// visit runs the client of a work to its end.
func (s *processShow) visit(ctx context.Context, w processWork, port string, run bool) (rate float64, p promoted, err error) {
	args := w.client(port)
	cmd, report, err := s.command(ctx, args, run)
	if err != nil {
		return 0, p, err
	}
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return 0, p, fmt.Errorf("%s: %w: %s", args[0], err, strings.TrimSpace(stderr.String()))
	}
	if rate, err = w.rate(string(out)); err != nil || !run {
		return rate, p, err
	}
	b, err := os.ReadFile(report)
	if err != nil {
		return 0, p, err
	}
	p, err = parsePromoted(b)
	return rate, p, err
}

// promoted is what the report of smcgw run says.
type promoted struct {
	Promoted uint64 `json:"promoted"`
	Bytes    uint64 `json:"bytes"`
	Obstacle string `json:"obstacle"`
}

func parsePromoted(report []byte) (promoted, error) {
	var doc struct {
		InProcess *promoted `json:"in_process"`
	}
	if err := json.Unmarshal(report, &doc); err != nil {
		return promoted{}, fmt.Errorf("report of smcgw run: %w", err)
	}
	if doc.InProcess == nil {
		return promoted{}, fmt.Errorf("report of smcgw run: nothing in process: %w", ErrExpectation)
	}
	return *doc.InProcess, nil
}

func (p *promoted) add(of promoted) {
	p.Promoted, p.Bytes = p.Promoted+of.Promoted, p.Bytes+of.Bytes
	if of.Obstacle != "" {
		p.Obstacle = of.Obstacle
	}
}

// String returns the cell of the table.
func (p *promoted) String() string {
	if p.Promoted == 0 && p.Obstacle != "" {
		return p.Obstacle
	}
	return fmt.Sprintf("%d connections promoted, %.1f MB by shared memory", p.Promoted, float64(p.Bytes)/1e6)
}

func freePort() (string, error) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return "", fmt.Errorf("port of a server: %w", err)
	}
	defer l.Close()
	return strconv.Itoa(l.Addr().(*net.TCPAddr).Port), nil
}

var errServerEnded = errors.New("the server ended before it listened")

// listening waits until something listens on a port of the loopback device. iperf3 takes a connection that is merely a
// probe for a client that has gone away.
func (s *processShow) listening(ended context.Context, port string) error {
	for end := time.Now().Add(10 * time.Second); ; {
		c, err := net.Dial("tcp4", "127.0.0.1:"+port)
		if err == nil {
			return c.Close()
		}
		if ended.Err() != nil {
			return context.Cause(ended)
		}
		if time.Now().After(end) {
			return err
		}
		if err := testnet.Sleep(s.ctx, 20*time.Millisecond); err != nil {
			return err
		}
	}
}

func iperfRate(out string) (float64, error) {
	r, err := testnet.ParseIPerf3Rate(out)
	return r.BitsPerSecond / 1e9, err
}

func redisRate(out string) (float64, error) {
	r, err := testnet.ParseRedis(out)
	return r["GET"] / 1000, err
}

func wrkRate(out string) (float64, error) {
	r, _, err := testnet.ParseWrk(out)
	return r / 1000, err
}
