package load

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"
)

// The raw stream is as rawLimit of verbs/soft: trains of full datagrams whose
// headers and bodies are apart in memory, and a window that is acknowledged
// cumulatively, so that nothing is lost and no thread spins.
const (
	rawHeaders  = 16      // a BTH and the ICRC, which most packets of a long message have
	rawWindow   = 1 << 20 // bytes under way at most
	rawAck      = 128 << 10
	rawBuffer   = 8 << 20
	rawTrain    = 65507 // UDP payload of one call
	rawDatagram = 64    // datagrams of one call
	rawSilence  = 3 * time.Second
)

func rawSocket(local netip.AddrPort) (int, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("udp socket: %w", err)
	}
	tv := unix.NsecToTimeval(int64(rawSilence))
	err = errors.Join(
		unix.Bind(fd, &unix.SockaddrInet4{Port: int(local.Port()), Addr: local.Addr().As4()}),
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tv),
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, rawBuffer),
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, rawBuffer),
	)
	if err != nil {
		_ = unix.Close(fd)
		return -1, fmt.Errorf("bind %v: %w", local, err)
	}
	return fd, nil
}

// receive waits for a datagram. Signals, which the Go runtime sends to its own
// threads, end a call on a socket with a timeout.
func receive(fd int, b []byte, flags int) (n int, from unix.Sockaddr, err error) {
	for {
		if n, from, err = unix.Recvfrom(fd, b, flags); !errors.Is(err, unix.EINTR) {
			return n, from, err
		}
	}
}

// rawService counts datagrams.
type rawService struct {
	fd    int
	job   *Job
	bytes int64
	done  chan error
}

func newRawService(addr netip.Addr, j *Job) (*rawService, error) {
	fd, err := rawSocket(netip.AddrPortFrom(addr, RawPort))
	if err != nil {
		return nil, err
	}
	if err := unix.SetsockoptInt(fd, unix.IPPROTO_UDP, unix.UDP_GRO, 1); err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("merge datagrams: %w", err)
	}
	return &rawService{fd: fd, job: j, done: make(chan error, 1)}, nil
}

func (s *rawService) ready() any { return hello{RawPort} }

func (s *rawService) begin(*control) error {
	go func() { s.done <- s.run() }()
	return nil
}

// run receives until a datagram of one byte says that it was the last.
func (s *rawService) run() error {
	buf := make([]byte, 64<<10)
	var ack [8]byte
	acked := int64(0)
	for {
		n, from, err := receive(s.fd, buf, 0)
		if err != nil {
			return fmt.Errorf("datagrams: %w", err)
		}
		if n == 1 {
			return nil
		}
		s.bytes += int64(n)
		if s.bytes-acked < rawAck {
			continue
		}
		acked = s.bytes
		binary.BigEndian.PutUint64(ack[:], uint64(acked))
		if err := unix.Sendto(s.fd, ack[:], 0, from); err != nil {
			return fmt.Errorf("acknowledge: %w", err)
		}
	}
}

func (s *rawService) end() (report, error) {
	err := <-s.done
	_ = unix.Close(s.fd)
	size := int64(s.job.MTU + rawHeaders)
	return report{Bytes: s.bytes / size * int64(s.job.MTU)}, err
}

func rawClient(j *Job, ctl *control) (r Result, err error) {
	var h hello
	if err := ctl.receive(&h); err != nil {
		return r, err
	}
	fd, err := rawSocket(netip.AddrPortFrom(j.Local, 0))
	if err != nil {
		return r, err
	}
	defer func() { _ = unix.Close(fd) }()
	if err := unix.Connect(fd, &unix.SockaddrInet4{Port: int(h.Port), Addr: j.Server.As4()}); err != nil {
		return r, fmt.Errorf("connect: %w", err)
	}
	cpu, start := cpuSeconds(), time.Now()
	if err := rawStream(fd, j); err != nil {
		return r, err
	}
	r.Seconds = time.Since(start).Seconds()
	return r, finish(ctl, &r, cpu)
}

func rawStream(fd int, j *Job) error {
	size := j.MTU + rawHeaders
	count := min(rawDatagram, rawTrain/size)
	if err := unix.SetsockoptInt(fd, unix.IPPROTO_UDP, unix.UDP_SEGMENT, size); err != nil {
		return fmt.Errorf("cut trains: %w", err)
	}
	header, body := make([]byte, rawHeaders), make([]byte, 1<<20)
	bufs := make([][]byte, 0, 2*count)
	ack := make([]byte, 8)
	sent, acked, at := int64(0), int64(0), 0
	hear := func(flags int) error {
		_, _, err := receive(fd, ack, flags)
		if err == nil {
			acked = int64(binary.BigEndian.Uint64(ack))
		}
		return err
	}
	for end := time.Now().Add(time.Duration(j.Seconds * 1e9)); time.Now().Before(end); {
		for sent+int64(count*size)-acked > rawWindow {
			if err := hear(0); err != nil {
				return fmt.Errorf("acknowledgements: %w", err)
			}
		}
		bufs = bufs[:0]
		for range count {
			if at+j.MTU > len(body) {
				at = 0
			}
			bufs = append(bufs, header, body[at:at+j.MTU])
			at += j.MTU
		}
		if _, err := unix.Writev(fd, bufs); err != nil {
			return fmt.Errorf("train: %w", err)
		}
		sent += int64(count * size)
		for hear(unix.MSG_DONTWAIT) == nil {
		}
	}
	if _, err := unix.Write(fd, []byte{0}); err != nil {
		return fmt.Errorf("last datagram: %w", err)
	}
	return nil
}
