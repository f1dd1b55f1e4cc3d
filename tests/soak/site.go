package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/gateway/admin"
	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/lab/daemon"
	"github.com/smcgw/smcgw/lab/testnet"
)

// Ports of the programs. All are in the policy.
const (
	echoPort     = 7000
	transferPort = 7001
	firstPort    = 7002
	rstPort      = 7003
	holdPort     = 7004
	udpPort      = 7005
	redisPort    = 6379
	iperfPort    = 5201
	webPort      = 8080
)

// site is a host with its servers and, unless it is the plain one, its gateway.
type site struct {
	*testnet.Host
	carriers, shmDir string // shmDir: sites with the same one share memory; empty: no gateway

	dir   string
	busy  sync.RWMutex // read-locked by work between gateways, in the order of names; locked while its gateway may carry no flows
	iperf sync.Mutex   // its port belongs to one server at a time

	links, rules []string // from before the gateway

	mu      sync.Mutex // guards everything below
	proc    *testnet.Proc
	admin   *admin.Client
	starts  int
	counted int64 // demotions of gateways that have ended
	latest  int64 // demotions of this one
}

// capable tells whether the site has a gateway.
func (s *site) capable() bool { return s.shmDir != "" }

// addr returns the address of a server.
func (s *site) addr(v6 bool, port uint16) netip.AddrPort {
	if v6 {
		return s.AddrPort6(port)
	}
	return s.AddrPort4(port)
}

// neighbourProbes is how often a neighbour is probed, once a second. With the kernel's default of three a connect()
// fails, natively too, if the cables of both hosts are out in turn meanwhile.
const neighbourProbes = "10"

// serve starts the servers.
func (s *site) serve(ctx context.Context) error {
	for _, family := range []string{"ipv4", "ipv6"} {
		if err := s.SetSysctl("net."+family+".neigh.eth0.mcast_solicit", neighbourProbes); err != nil {
			return err
		}
	}
	apps := []string{"serve", "-quiet"}
	for _, m := range []struct {
		mode string
		port uint16
	}{{"echo", echoPort}, {"transfer", transferPort}, {"first", firstPort}, {"rst", rstPort}, {"hold", holdPort}} {
		apps = append(apps, fmt.Sprintf("%s=[::]:%d", m.mode, m.port))
	}
	if _, err := s.StartApp(apps...); err != nil {
		return fmt.Errorf("servers on %s: %w", s.Name, err)
	}
	if _, err := s.StartApp("serve-udp", fmt.Sprintf("echo=[::]:%d", udpPort)); err != nil {
		return fmt.Errorf("server of datagrams on %s: %w", s.Name, err)
	}
	web, err := s.StartApp("web", fmt.Sprintf("[::]:%d", webPort))
	if err != nil {
		return fmt.Errorf("web server on %s: %w", s.Name, err)
	}
	if err := web.WaitOutput(ctx, "listening"); err != nil {
		return fmt.Errorf("web server on %s: %w", s.Name, err)
	}
	if _, err := s.Redis(redisPort); err != nil {
		return fmt.Errorf("redis on %s: %w", s.Name, err)
	}
	return nil
}

const configuration = `schema: smcgw/v1
mode: %[7]s
admin: %[1]s/%[2]s.sock
devices: [eth0]
policy:
  - { name: services, match: { ports: [%[5]s], peers: [10.77.0.0/16, "fd77::/16"] }, action: accelerate }
  - { name: datagrams, match: { proto: udp, ports: [%[6]d], peers: [10.77.0.0/16, "fd77::/16"] }, action: accelerate }
  - { name: default, action: pass }
carriers: [%[3]s]
shm_dir: %[1]s/%[4]s
state_dir: %[1]s/%[2]s.state
in_process: { socket: %[1]s/%[2]s.in-process }
limits: { memory: 512MiB, new_flows_at_once: 1024, handshake_timeout: 1s }
fallback: { negative_cache: 200ms }
log: { level: debug, format: text }
`

// services returns the ports of the programs that use TCP.
func services() []uint16 {
	return []uint16{echoPort, transferPort, firstPort, rstPort, holdPort, redisPort, iperfPort, webPort}
}

// policy returns the configuration of a gateway that handles these ports.
func (s *site) policy(mode report.Mode, ports []uint16) string {
	list := strings.Trim(strings.Join(strings.Fields(fmt.Sprint(ports)), ", "), "[]")
	return fmt.Sprintf(configuration, s.dir, s.Name, s.carriers, s.shmDir, list, udpPort, mode)
}

// file returns the path of the gateway's configuration, socket that of its admin socket.
func (s *site) file() string   { return filepath.Join(s.dir, s.Name+".yaml") }
func (s *site) socket() string { return filepath.Join(s.dir, s.Name+".sock") }

// up starts the gateway, or another one that takes over, and waits until it carries.
func (s *site) up(ctx context.Context, executable string, takeOver bool) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	proc, admin, err := daemon.Start(ctx, s.Host, daemon.Spec{
		Executable: executable, File: s.file(), Configuration: s.policy(report.ModeEnforce, services()),
		Socket: s.socket(), TakeOver: takeOver,
	})
	if err != nil && takeOver { // the old one goes on
		return errors.Join(err, proc.Stop(patience))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.admin != nil {
		s.admin.Close()
	}
	s.proc, s.admin = proc, admin
	s.starts++
	return err
}

// asking returns the client of the gateway's admin socket.
func (s *site) asking() *admin.Client {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.admin
}

// process returns the guardian of the gateway; the daemon is its child.
func (s *site) process() *testnet.Proc {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.proc
}

// signal sends a signal to the daemon.
func (s *site) signal(sig unix.Signal) error {
	pids := s.Children(s.process().Pid())
	if len(pids) == 0 {
		return fmt.Errorf("daemon of %s: %w", s.Name, os.ErrProcessDone)
	}
	for _, pid := range pids {
		if err := unix.Kill(pid, sig); err != nil {
			return fmt.Errorf("%v to the daemon of %s: %w", sig, s.Name, err)
		}
	}
	return nil
}

// writeLog saves the log of the gateway.
func (s *site) writeLog() {
	s.mu.Lock()
	proc, n := s.proc, s.starts
	s.mu.Unlock()
	if proc != nil {
		s.writeLogOf(proc, n)
	}
}

// writeLogOf saves the log of the n-th gateway of the host.
func (s *site) writeLogOf(proc *testnet.Proc, n int) {
	_ = os.WriteFile(filepath.Join(s.dir, fmt.Sprintf("%s-%d.log", s.Name, n)), []byte(proc.Output()), 0o600)
}

// down stops the gateway in order and reports what it leaves behind.
func (s *site) down(l *ledger) {
	began := time.Now()
	proc := s.process()
	if proc == nil {
		return
	}
	err := proc.Stop(patience)
	s.writeLog()
	if err != nil {
		l.fail(began, "gateway of "+s.Name+" does not end in order", err.Error())
	}
	links, err := s.Links()
	if err == nil && !slices.Equal(links, s.links) {
		l.fail(began, "gateway of "+s.Name+" leaves network devices", fmt.Sprint(links))
	}
	rules, err := s.Rules()
	if err == nil && !slices.Equal(rules, s.rules) {
		l.fail(began, "gateway of "+s.Name+" leaves rules", strings.Join(rules, "\n"))
	}
	s.admin.Close()
}
