package bench

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/gateway/admin"
)

// session is a measurement from the view of the measuring host. Only works may run concurrently.
type session struct {
	talk  *talk
	id    [sessionSize]byte
	to    netip.AddrPort
	ports portRange // local ports of the next connections
	note  string    // what the serving host's gateway will not do
	own   Gateway   // the gateway beside us; nil: none
	idle  int       // connections to hold
	load  *loading  // what does the works; nil: this process
	// noProgram is why the serving host has no [Program].
	noProgram string
	once      sync.Once
	stop      func() bool
}

// answerTime bounds the wait for an answer on the control connection, in addition to what the server may need for its
// gateway.
const answerTime = admin.TrialPatience + 10*time.Second

// dial makes a connection of the measurement, without Multipath TCP, which could not be carried and is not what is
// compared.
func dial(ctx context.Context, to netip.AddrPort, ports portRange) (*net.TCPConn, error) {
	d := net.Dialer{Timeout: grace, Control: ports.control}
	d.SetMultipathTCP(false)
	c, err := d.DialContext(ctx, "tcp", to.String())
	if err != nil {
		return nil, err
	}
	return c.(*net.TCPConn), nil
}

// open connects and proves that we know the token. The end of ctx ends the session.
func open(ctx context.Context, to netip.AddrPort, token Token) (*session, error) {
	c, err := dial(ctx, to, portRange{})
	if err != nil {
		return nil, err
	}
	s := &session{talk: newTalk(c), to: to, stop: context.AfterFunc(ctx, func() { _ = c.Close() })}
	if err := s.meet(token); err != nil {
		s.close()
		return nil, fmt.Errorf("control connection to %v: %w", to, err)
	}
	return s, nil
}

// meet proves that we know the token, and demands the same of the server.
func (s *session) meet(token Token) error {
	if err := s.talk.SetDeadline(time.Now().Add(answerTime)); err != nil {
		return err
	}
	if _, err := s.talk.Write(opening(controlVersion)); err != nil {
		return err
	}
	m, err := s.talk.receive()
	if err != nil {
		return err
	}
	if len(m.Nonce) == 0 {
		return malformed("no challenge")
	}
	theirs, ours := [nonceSize]byte(m.Nonce), random[[nonceSize]byte]()
	proof := token.proof(measuring, theirs, ours)
	if m, err = s.exchange(message{Nonce: ours[:], Proof: proof[:]}); err != nil {
		return err
	}
	if len(m.Proof) == 0 || len(m.Session) == 0 || !equal([proofSize]byte(m.Proof), token.proof(serving, theirs, ours)) {
		return malformed("the serving host does not know the token")
	}
	s.id, s.note, s.noProgram = [sessionSize]byte(m.Session), m.Note, m.NoProgram
	return nil
}

// exchange sends a message and waits for the next.
func (s *session) exchange(m message) (message, error) {
	if err := s.talk.SetDeadline(time.Now().Add(answerTime)); err != nil {
		return message{}, err
	}
	if err := s.talk.send(m); err != nil {
		return message{}, err
	}
	return s.talk.receive()
}

// sample reads the server's meters.
func (s *session) sample() (reading, error) {
	m, err := s.exchange(message{Ask: askMeters})
	if err == nil && m.Meters == nil {
		err = malformed("no meters")
	}
	if err != nil {
		return reading{}, fmt.Errorf("control connection: %w", err)
	}
	return *m.Meters, nil
}

// serveBy makes the serving host serve by itself, or by its program.
func (s *session) serveBy(who question) error {
	m, err := s.exchange(message{Ask: who})
	if err != nil {
		return fmt.Errorf("control connection: %w", err)
	}
	if m.Note != "" {
		return fmt.Errorf("%w on the serving host: %s", ErrProgram, m.Note)
	}
	return nil
}

// weigh asks for the memory of the gateway beside the server.
func (s *session) weigh() (Memory, error) {
	m, err := s.exchange(message{Ask: askMemory})
	if err == nil && m.Memory == nil {
		err = malformed("no memory")
	}
	if err != nil {
		return Memory{}, fmt.Errorf("control connection: %w", err)
	}
	return *m.Memory, nil
}

func (s *session) close() {
	s.once.Do(func() {
		s.stop()
		_ = s.talk.Close()
	})
}

// order makes an order of the session.
func (s *session) order(w work, size int, d time.Duration) []byte {
	return order{work: w, size: uint32(size), time: d, session: s.id}.bytes()
}

// portRange is a range of local ports, both ends included; the zero value is the system's. Each variant has its own
// range: a native connection leaves TIME_WAIT at the server, which keeps the next one on the same tuple native, so a
// carrier must not use that tuple.
type portRange struct{ low, high uint16 }

// minPorts is the minimum number of ports of a variant: a smaller range is not divided.
const minPorts = 1024

// systemPorts returns the range from which the kernel takes local ports.
func systemPorts() portRange {
	b, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range")
	if err != nil {
		return portRange{}
	}
	return parsePorts(string(b))
}

func parsePorts(s string) (r portRange) {
	if n, err := fmt.Sscan(s, &r.low, &r.high); n != 2 || err != nil || r.low == 0 || r.high < r.low {
		return portRange{}
	}
	return r
}

// part returns the i-th of n parts of equal size.
func (r portRange) part(i, n int) portRange {
	size := (int(r.high) - int(r.low) + 1) / n
	if r.low == 0 || size < minPorts {
		return portRange{}
	}
	low := int(r.low) + i*size
	return portRange{uint16(low), uint16(low + size - 1)}
}

// control makes the kernel choose from the range; it is net.Dialer.Control. Kernels before 6.3 cannot, and choose from
// all ports.
func (r portRange) control(_, _ string, c syscall.RawConn) error {
	if r.low == 0 {
		return nil
	}
	return c.Control(func(fd uintptr) {
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_LOCAL_PORT_RANGE, int(r.high)<<16|int(r.low))
	})
}
