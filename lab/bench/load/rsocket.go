package load

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"runtime"
	"runtime/debug"
	"time"

	"github.com/smcgw/smcgw/rsocket/socket"
	"github.com/smcgw/smcgw/verbs/soft"
)

const (
	// rsocketUDPPort is the soft devices' of these jobs: the server has another one.
	rsocketUDPPort = 14791
	// meetTimeout bounds connecting.
	meetTimeout = 10 * time.Second
)

// rsocketStack is a device with a stack on it, and how connections are made.
type rsocketStack struct {
	*socket.Stack
	listener *socket.Listener
	soft     *soft.Device
	before   soft.Stats // as of the job's begin
}

// counters are what the soft device counted since the job began.
func (s *rsocketStack) counters() Counters { return since(s.before, s.soft.Stats()) }

// starts begins a job.
func (s *rsocketStack) starts() { s.before = s.soft.Stats() }

// openRsocket opens a device; a server's listens.
func openRsocket(j *Job, addr netip.Addr, server bool) (*rsocketStack, error) {
	cfg := socket.StackConfig{PollingTime: time.Duration(j.Polling * 1e3)}
	s := &rsocketStack{}
	var err error
	if s.soft, err = soft.Open(soft.Config{Addrs: []netip.Addr{addr}, UDPPort: rsocketUDPPort}); err != nil {
		return nil, err
	}
	if s.Stack, err = socket.NewStack(s.soft, cfg); err != nil || !server {
		return s, err
	}
	s.listener, err = (&socket.ListenConfig{Stack: s.Stack}).Listen(context.Background(), netip.AddrPortFrom(addr, PlainPort))
	return s, err
}

// invitation is what a client has to know: where to connect to.
type invitation struct {
	Port uint16
}

// rsocketService is the far side: it counts what comes, or sends it back.
type rsocketService struct {
	tcpService
	stack *rsocketStack
	conns chan io.Closer // what is idle
}

func newRsocketService(s *rsocketStack, ln net.Listener, j *Job) (*rsocketService, error) {
	svc := &rsocketService{tcpService: tcpService{job: j, ln: ln}, stack: s}
	s.starts()
	return svc, nil
}

func (s *rsocketService) ready() any { return invitation{Port: PlainPort} }

func (s *rsocketService) begin(*control) error {
	s.done = make(chan error, 1)
	if s.job.Op == "idle" {
		s.conns = make(chan io.Closer, s.job.Count)
		go s.collect()
		return nil
	}
	c, err := s.accept()
	if err != nil {
		return err
	}
	go s.run(c)
	return nil
}

func (s *rsocketService) accept() (net.Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), meetTimeout)
	defer cancel()
	return s.stack.listener.AcceptConn(ctx)
}

// collect takes the connections of an idle job.
func (s *rsocketService) collect() {
	for range s.job.Count {
		c, err := s.accept()
		if err != nil {
			s.done <- err
			return
		}
		s.conns <- c
	}
	s.done <- nil
}

func (s *rsocketService) end() (report, error) {
	rep, err := s.tcpService.end()
	rep.Counters = s.stack.counters()
	if s.conns != nil {
		close(s.conns)
		for c := range s.conns {
			_ = c.Close()
		}
	}
	return rep, err
}

func rsocketClient(j *Job, ctl *control) (r Result, err error) {
	var at invitation
	if err := ctl.receive(&at); err != nil {
		return r, err
	}
	s, err := openRsocket(j, j.Local, false)
	if err != nil {
		return r, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), meetTimeout)
	defer cancel()
	dial := func() (net.Conn, error) {
		return (&socket.Dialer{Stack: s.Stack}).Dial(ctx, netip.AddrPortFrom(j.Server, at.Port))
	}
	if j.Op == "idle" {
		return r, idle(j, ctl, &r, dial)
	}
	c, err := dial()
	if err != nil {
		return r, err
	}
	defer func() { _ = c.Close() }()
	s.starts()
	cpu, start := cpuSeconds(), time.Now()
	if j.Op == "ping" {
		err = pingConn(c, j, &r)
	} else {
		err = streamConn(c, j, &r)
	}
	r.Seconds = time.Since(start).Seconds()
	r.Source = s.counters()
	if err != nil {
		return r, err
	}
	return r, finish(ctl, &r, cpu)
}

// idle makes connections and measures what they take of this process's memory.
func idle(j *Job, ctl *control, r *Result, dial func() (net.Conn, error)) error {
	warm, err := dial() // what is there once does not count
	if err != nil {
		return err
	}
	before := resident()
	for range j.Count - 1 {
		c, err := dial()
		if err != nil {
			return err
		}
		defer func() { _ = c.Close() }()
	}
	r.Memory = float64(resident()-before) / float64(j.Count-1)
	return errors.Join(finish(ctl, r, cpuSeconds()), warm.Close())
}

// resident is the memory of this process that is in use, device memory included.
func resident() int64 {
	debug.FreeOSMemory()
	runtime.GC()
	text, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0
	}
	var size, pages int64
	if _, err := fmt.Sscan(string(text), &size, &pages); err != nil {
		return 0
	}
	return pages * int64(os.Getpagesize())
}
