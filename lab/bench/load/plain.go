package load

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// plainBuffer is what a program gives the kernel at a time.
const plainBuffer = 256 << 10

// sourceSize is the memory that streams are written from.
const sourceSize = 4 << 20

// hello is what a server has to say if nothing needs to be agreed on.
type hello struct{ Port uint16 }

// tcpService takes the one connection of a job: it counts what comes, or sends
// it back.
type tcpService struct {
	job   *Job
	ln    net.Listener
	done  chan error
	bytes int64
	times sampler
}

func (s *tcpService) ready() any { return hello{PlainPort} }

func (s *tcpService) begin(*control) error {
	c, err := s.ln.Accept()
	if err != nil {
		return err
	}
	s.done = make(chan error, 1)
	go s.run(c)
	return nil
}

func (s *tcpService) run(c net.Conn) {
	defer func() { _ = c.Close() }()
	if s.job.Op == "ping" {
		s.done <- echo(c, s.job.Size)
		return
	}
	buf := make([]byte, plainBuffer)
	for {
		n, err := c.Read(buf)
		s.bytes += int64(n)
		s.times.add(time.Now(), s.bytes)
		if errors.Is(err, io.EOF) {
			s.done <- nil
			return
		}
		if err != nil {
			s.done <- err
			return
		}
		if n == 0 {
			continue
		}
	}
}

func (s *tcpService) end() (report, error) {
	err := <-s.done
	return report{Bytes: s.bytes, Samples: s.times.list}, err
}

// echo returns messages until the stream ends.
func echo(c net.Conn, size int) error {
	buf := make([]byte, size)
	for {
		if _, err := io.ReadFull(c, buf); err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		if _, err := c.Write(buf); err != nil {
			return err
		}
	}
}

func tcpClient(j *Job, ctl *control) (r Result, err error) {
	var h hello
	if err := ctl.receive(&h); err != nil {
		return r, err
	}
	d := net.Dialer{Control: func(_, _ string, raw syscall.RawConn) (err error) {
		if j.CC == "" {
			return nil
		}
		if e := raw.Control(func(fd uintptr) {
			err = unix.SetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION, j.CC)
		}); e != nil {
			return e
		}
		return err
	}}
	d.SetMultipathTCP(false)
	c, err := d.DialContext(context.Background(), "tcp", netip.AddrPortFrom(j.Server, h.Port).String())
	if err != nil {
		return r, err
	}
	defer func() { _ = c.Close() }()
	cpu, start := cpuSeconds(), time.Now()
	if j.Op == "ping" {
		err = pingConn(c, j, &r)
	} else {
		err = streamConn(c, j, &r)
	}
	r.Seconds = time.Since(start).Seconds()
	if err != nil {
		return r, err
	}
	return r, finish(ctl, &r, cpu)
}

// streamConn writes for the time of the job and waits for the end: the server
// closes when it has everything.
func streamConn(c net.Conn, j *Job, r *Result) error {
	size := j.Size
	if j.Op == "stream" && j.Kind == "tcp" {
		size = plainBuffer
	}
	// Writes of any size walk over the same memory: what differs is the size, not
	// how much of it is in the processor's cache.
	buf := make([]byte, max(size, sourceSize))
	at := 0
	stop := atomic.Bool{}
	timer := time.AfterFunc(time.Duration(j.Seconds*1e9), func() { stop.Store(true) })
	defer timer.Stop()
	for !stop.Load() {
		if at+size > len(buf) {
			at = 0
		}
		if _, err := c.Write(buf[at : at+size]); err != nil {
			return err
		}
		at += size
		r.Messages++
	}
	if err := c.(halfCloser).CloseWrite(); err != nil {
		return err
	}
	if _, err := c.Read(buf); !errors.Is(err, io.EOF) {
		return fmt.Errorf("end of the stream: %w", err)
	}
	return nil
}

// halfCloser is a stream whose directions end apart.
type halfCloser interface{ CloseWrite() error }

// pingConn measures round trips, after some that do not count.
func pingConn(c net.Conn, j *Job, r *Result) error {
	buf := make([]byte, j.Size)
	trips := make([]time.Duration, 0, j.Count)
	begins := make([]time.Time, 0, j.Count)
	for i := range j.Count + warmUp {
		start := time.Now()
		if _, err := c.Write(buf); err != nil {
			return err
		}
		if _, err := io.ReadFull(c, buf); err != nil {
			return err
		}
		if i >= warmUp {
			trips = append(trips, time.Since(start))
			begins = append(begins, start)
		}
	}
	if t, ok := c.(halfCloser); ok {
		_ = t.CloseWrite()
	}
	r.Messages = int64(len(trips))
	r.Rate = bestRate(begins)
	r.quantiles(trips)
	return nil
}

// rateRun is how many round trips in a row make a rate.
const rateRun = 1000

// bestRate is the rate per second of the quickest run: what the way can do while
// nothing else wants the processor.
func bestRate(begins []time.Time) (best float64) {
	for i := rateRun; i < len(begins); i++ {
		best = max(best, rateRun/begins[i].Sub(begins[i-rateRun]).Seconds())
	}
	return best
}

// warmUp is how many round trips do not count.
const warmUp = 200

// udpService sends datagrams back to where they come from.
type udpService struct {
	c    *net.UDPConn
	done chan error
}

func newUDPService(addr netip.Addr) (*udpService, error) {
	c, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(addr, PlainPort)))
	if err != nil {
		return nil, err
	}
	return &udpService{c: c, done: make(chan error, 1)}, nil
}

func (s *udpService) ready() any { return hello{PlainPort} }

func (s *udpService) begin(*control) error {
	go s.run()
	return nil
}

func (s *udpService) run() {
	buf := make([]byte, 64<<10)
	for {
		n, from, err := s.c.ReadFromUDPAddrPort(buf)
		if err == nil {
			_, err = s.c.WriteToUDPAddrPort(buf[:n], from)
		}
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				err = nil
			}
			s.done <- err
			return
		}
	}
}

func (s *udpService) end() (report, error) {
	if err := s.c.Close(); err != nil {
		return report{}, err
	}
	return report{}, <-s.done
}

func udpClient(j *Job, ctl *control) (r Result, err error) {
	var h hello
	if err := ctl.receive(&h); err != nil {
		return r, err
	}
	if j.Op != "ping" {
		return r, fmt.Errorf("%w: udp can only ping", errUsage)
	}
	c, err := net.Dial("udp", netip.AddrPortFrom(j.Server, h.Port).String())
	if err != nil {
		return r, err
	}
	defer func() { _ = c.Close() }()
	_ = c.SetDeadline(time.Now().Add(20 * time.Second)) // a lost datagram fails the job
	cpu, start := cpuSeconds(), time.Now()
	err = pingConn(c, j, &r)
	r.Seconds = time.Since(start).Seconds()
	if err != nil {
		return r, err
	}
	return r, finish(ctl, &r, cpu)
}
