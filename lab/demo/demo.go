package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/smcgw/smcgw/gateway/admin"
	"github.com/smcgw/smcgw/lab/daemon"
	"github.com/smcgw/smcgw/lab/testnet"
)

// Options say where the demonstration writes and what it runs.
type Options struct {
	// Out receives progress messages and the table.
	Out io.Writer
	// Executable is the smcgw that the hosts run.
	Executable string
	// Rounds is how often each measurement is taken in both ways. Default: 3.
	Rounds int
}

func (o Options) withDefaults() Options {
	if o.Out == nil {
		o.Out = io.Discard
	}
	if o.Rounds == 0 {
		o.Rounds = 3
	}
	return o
}

var (
	// ErrExpectation means that something did not happen as expected.
	ErrExpectation = errors.New("an expectation was not met")
	// ErrNoPrograms means that nothing could be shown.
	ErrNoPrograms = errors.New("none of the programs that it shows is installed")
)

// Ports of the programs; all are in the policy.
const (
	webPort   = 8080
	redisPort = 6379
	iperfPort = 5201
)

// show is one demonstration in progress.
type show struct {
	Options
	ctx        context.Context
	dir        string
	net        *testnet.Network
	h1, h2, h3 *testnet.Host
	h4         *testnet.Host // shares no memory with the others: another machine
	g1, g2, g4 *host
	report     table
}

// host is a host with a gateway.
type host struct {
	*testnet.Host
	proc  *testnet.Proc
	admin *admin.Client
}

// Run makes four hosts from network namespaces, which needs root, and shows everything on them. It always cleans up. It
// returns ErrExpectation if a line of the table is not as expected.
func Run(ctx context.Context, opts Options) (err error) {
	s := &show{Options: opts.withDefaults(), ctx: ctx}
	s.report.out = s.Out
	defer func() { err = errors.Join(err, s.close()) }()
	if err := s.build(); err != nil {
		return err
	}
	for _, step := range []func() error{s.measure, s.machines, s.plainPeer, s.death} {
		if err := step(); err != nil {
			return err
		}
	}
	return s.report.print()
}

// build creates the hosts and starts programs and gateways.
func (s *show) build() (err error) {
	s.say("four hosts: h1, h2 and h4 run smcgw, h3 does not; h4 shares no memory with the others, as another machine")
	if s.dir, err = os.MkdirTemp("", "smcgw-demo-"); err != nil {
		return fmt.Errorf("demo: %w", err)
	}
	if s.net, err = testnet.New(testnet.Config{Hosts: []string{"h1", "h2", "h3", "h4"}}); err != nil {
		return fmt.Errorf("make hosts: %w", err)
	}
	s.h1, s.h2, s.h3, s.h4 = s.net.Host("h1"), s.net.Host("h2"), s.net.Host("h3"), s.net.Host("h4")
	for _, h := range []*testnet.Host{s.h2, s.h3, s.h4} {
		if err := s.servers(h); err != nil {
			return err
		}
	}
	if s.g1, err = s.up(s.h1, "shm"); err != nil {
		return err
	}
	if s.g2, err = s.up(s.h2, "shm"); err != nil {
		return err
	}
	s.g4, err = s.up(s.h4, "own-shm")
	return err
}

// servers starts ordinary servers on a host.
func (s *show) servers(h *testnet.Host) error {
	p, err := h.StartApp("web", fmt.Sprintf("[::]:%d", webPort))
	if err != nil {
		return fmt.Errorf("web server on %s: %w", h.Name, err)
	}
	if err := p.WaitOutput(s.ctx, "listening"); err != nil {
		return fmt.Errorf("web server on %s: %w", h.Name, err)
	}
	if installed("redis-server") && installed("redis-benchmark") {
		if _, err := h.Redis(redisPort); err != nil {
			return fmt.Errorf("redis on %s: %w", h.Name, err)
		}
	}
	if installed("iperf3") {
		if _, err := h.IPerf3Server(iperfPort); err != nil {
			return fmt.Errorf("iperf3 on %s: %w", h.Name, err)
		}
	}
	return nil
}

const configuration = `schema: smcgw/v1
mode: enforce
admin: %[1]s/%[2]s.sock
devices: [eth0]
policy:
  - { name: demo, match: { ports: [%[3]d, %[4]d, %[5]d], peers: [10.77.0.0/16, "fd77::/16"] }, action: accelerate }
  - { name: default, action: pass }
carriers: [shm, soft]
shm_dir: %[1]s/%[6]s
state_dir: %[1]s/%[2]s.state
in_process: { socket: %[1]s/%[2]s.in-process }
limits: { handshake_timeout: 1s }
`

// up starts a gateway on a host and waits until it carries.
func (s *show) up(h *testnet.Host, shmDir string) (*host, error) {
	p, admin, err := daemon.Start(s.ctx, h, daemon.Spec{
		Executable:    s.Executable,
		File:          filepath.Join(s.dir, h.Name+".yaml"),
		Configuration: fmt.Sprintf(configuration, s.dir, h.Name, webPort, redisPort, iperfPort, shmDir),
		Socket:        filepath.Join(s.dir, h.Name+".sock"),
	})
	if p == nil {
		return nil, err
	}
	return &host{Host: h, proc: p, admin: admin}, err
}

// close ends everything that build started.
func (s *show) close() error {
	var errs []error
	for _, g := range []*host{s.g1, s.g2, s.g4} {
		if g != nil {
			g.admin.Close()
			_ = g.proc.Stop(5 * time.Second)
		}
	}
	if s.net != nil {
		errs = append(errs, s.net.Close())
	}
	if s.dir != "" {
		errs = append(errs, os.RemoveAll(s.dir))
	}
	return errors.Join(errs...)
}

func (o Options) say(format string, args ...any) {
	fmt.Fprintf(o.Out, "• "+format+"\n", args...)
}
