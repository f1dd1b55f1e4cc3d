package programs

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// socket is a blocking socket, used by one goroutine.
type socket int

func (j *job) socket() (socket, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, os.NewSyscallError("socket", err)
	}
	return socket(fd), nil
}

// connect waits for the connection as programs do that block.
func (j *job) connect(s socket) error {
	to := unix.SockaddrInet4{Port: int(j.to.Port()), Addr: j.to.Addr().As4()}
	err := unix.Connect(int(s), &to)
	for errors.Is(err, unix.EINTR) {
		if err = unix.Connect(int(s), &to); errors.Is(err, unix.EISCONN) {
			err = nil
		}
	}
	return os.NewSyscallError("connect", err)
}

func (j *job) dial() (socket, error) {
	s, err := j.socket()
	if err != nil {
		return -1, err
	}
	if err := j.connect(s); err != nil {
		s.close()
		return -1, err
	}
	return s, nil
}

func (s socket) close() { _ = unix.Close(int(s)) }

// noDelay is what every request-response program sets.
func (s socket) noDelay() error {
	return os.NewSyscallError("setsockopt", unix.SetsockoptInt(int(s), unix.IPPROTO_TCP, unix.TCP_NODELAY, 1))
}

func (s socket) writeAll(b []byte) error {
	for len(b) > 0 {
		n, err := unix.Write(int(s), b)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return os.NewSyscallError("write", err)
		}
		b = b[max(n, 0):]
	}
	return nil
}

func (s socket) readAll(b []byte) error {
	for len(b) > 0 {
		n, err := unix.Read(int(s), b)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return os.NewSyscallError("read", err)
		case n == 0:
			return io.ErrUnexpectedEOF
		}
		b = b[max(n, 0):]
	}
	return nil
}

// quantiles sorts.
func (r *Result) quantiles(took []time.Duration) {
	if len(took) == 0 {
		return
	}
	slices.Sort(took)
	r.Median = float64(took[len(took)/2].Nanoseconds()) / 1e3
	r.P99 = float64(took[len(took)*99/100].Nanoseconds()) / 1e3
}

// connects measures connect(2) alone, one after the other, for a number of
// connections.
func connects(j *job) (r Result, err error) {
	took := make([]time.Duration, 0, j.count)
	begin := time.Now()
	for range j.count {
		s, err := j.socket()
		if err != nil {
			return r, err
		}
		start := time.Now()
		err = j.connect(s)
		took = append(took, time.Since(start))
		s.close()
		if err != nil {
			return r, err
		}
		time.Sleep(j.gap)
	}
	r.Operations, r.Seconds = j.count, time.Since(begin).Seconds()
	r.quantiles(took)
	return r, nil
}

// rate makes connections for a while, or a number of them, one request and its
// answer on each. A duration is from before connect(2) to after close(2).
func rate(j *job) (r Result, err error) {
	var (
		mu   sync.Mutex
		all  []time.Duration
		errs []error
		work sync.WaitGroup
	)
	begin := time.Now()
	end := begin.Add(j.duration())
	for range j.parallel {
		work.Go(func() {
			took, err := requests(j, end)
			mu.Lock()
			defer mu.Unlock()
			all, errs = append(all, took...), append(errs, err)
		})
	}
	work.Wait()
	r.Operations, r.Seconds = len(all), time.Since(begin).Seconds()
	r.quantiles(all)
	return r, errors.Join(errs...)
}

func requests(j *job, end time.Time) (took []time.Duration, err error) {
	request, answer := make([]byte, j.size), make([]byte, j.size)
	for {
		start := time.Now()
		if start.After(end) || j.count > 0 && len(took) == j.count {
			return took, nil
		}
		s, err := j.dial()
		if err != nil {
			return took, err
		}
		err = errors.Join(s.noDelay(), s.writeAll(request), s.readAll(answer))
		s.close()
		if err != nil {
			return took, err
		}
		took = append(took, time.Since(start))
	}
}

// writes sends pieces of one size for a while; the sink tells how much came.
func writes(j *job) (r Result, err error) {
	s, err := j.dial()
	if err != nil {
		return r, err
	}
	defer s.close()
	piece := make([]byte, j.size)
	begin := time.Now()
	end := begin.Add(j.duration())
	var sent int64
	for time.Now().Before(end) {
		if err := s.writeAll(piece); err != nil {
			return r, err
		}
		sent += int64(len(piece))
		r.Operations++
	}
	if err := unix.Shutdown(int(s), unix.SHUT_WR); err != nil {
		return r, os.NewSyscallError("shutdown", err)
	}
	count := make([]byte, 8)
	if err := s.readAll(count); err != nil {
		return r, err
	}
	r.Seconds, r.Bytes = time.Since(begin).Seconds(), int64(binary.BigEndian.Uint64(count))
	if r.Bytes != sent {
		return r, fmt.Errorf("%d of %d bytes arrived", r.Bytes, sent)
	}
	return r, nil
}

// idle opens connections, lets a byte go there and back on each, says so and
// keeps them until its input ends.
func idle(j *job) (r Result, err error) {
	begin := time.Now()
	held := make([]socket, 0, j.count)
	defer func() {
		for _, s := range held {
			s.close()
		}
	}()
	one := make([]byte, 1)
	for range j.count {
		s, err := j.dial()
		if err != nil {
			return r, fmt.Errorf("connection %d: %w", len(held)+1, err)
		}
		held = append(held, s)
		if err := errors.Join(s.writeAll(one), s.readAll(one)); err != nil {
			return r, fmt.Errorf("connection %d: %w", len(held), err)
		}
	}
	fmt.Println(Held)
	if _, err := io.Copy(io.Discard, os.Stdin); err != nil {
		return r, err
	}
	r.Operations, r.Seconds = len(held), time.Since(begin).Seconds()
	return r, nil
}

// Held is what the idle client says once its connections stand.
const Held = "connections held"
