package load

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"
)

func sortDurations(d []time.Duration) { slices.Sort(d) }

// server is one process that does the far side of any number of jobs.
type server struct {
	addr  netip.Addr
	plain net.Listener  // of TCP jobs
	soft  *device       // opened with the first job that needs it
	rsock *rsocketStack // likewise
}

// service is the far side of a job. ready is what the client is told; wait ends
// when the client has said that it is done, and returns what was seen.
type service interface {
	ready() any
	// begin learns what the client answers to ready.
	begin(ctl *control) error
	end() (report, error)
}

func serve(addr netip.Addr) error {
	ln, err := net.Listen("tcp", netip.AddrPortFrom(addr, Port).String())
	if err != nil {
		return err
	}
	s := &server{addr: addr}
	if s.plain, err = net.Listen("tcp", netip.AddrPortFrom(addr, PlainPort).String()); err != nil {
		return err
	}
	fmt.Println("serving")
	for {
		c, err := ln.Accept()
		if err != nil {
			return err
		}
		// One job after another, but for tests that want two at a time.
		go s.job(c)
	}
}

func (s *server) job(c net.Conn) {
	defer func() { _ = c.Close() }()
	ctl := newControl(c)
	var j Job
	if err := ctl.receive(&j); err != nil {
		return
	}
	rep, err := s.do(&j, ctl)
	if err != nil {
		rep.Error = err.Error()
	}
	_ = ctl.send(&rep)
}

func (s *server) do(j *Job, ctl *control) (report, error) {
	svc, err := s.open(j)
	if err != nil {
		return report{}, err
	}
	stop, err := profile(j, "sink")
	if err != nil {
		return report{}, err
	}
	defer stop()
	cpu := cpuSeconds()
	if err := ctl.send(svc.ready()); err != nil {
		return report{}, err
	}
	if err := svc.begin(ctl); err != nil {
		return report{}, err
	}
	var word string
	heard := ctl.receive(&word)
	used := cpuSeconds() - cpu
	rep, err := svc.end()
	rep.CPU = used
	if err == nil {
		err = heard
	}
	return rep, err
}

func (s *server) open(j *Job) (service, error) {
	switch j.Kind {
	case "tcp":
		return &tcpService{job: j, ln: s.plain}, nil
	case "udp":
		return newUDPService(s.addr)
	case "raw":
		return newRawService(s.addr, j)
	case "soft":
		if s.soft == nil {
			d, err := openDevice(s.addr)
			if err != nil {
				return nil, err
			}
			s.soft = d
		}
		return newSoftService(s.soft, j)
	case "rsocket-soft":
		if s.rsock == nil {
			stack, err := openRsocket(j, s.addr, true)
			if err != nil {
				return nil, err
			}
			s.rsock = stack
		}
		return newRsocketService(s.rsock, s.plain, j)
	}
	return nil, fmt.Errorf("%w: kind %q", errUsage, j.Kind)
}
