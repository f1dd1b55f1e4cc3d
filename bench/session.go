package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"time"
)

// session is a measurement as the measuring host sees it. Works may run beside
// each other, nothing else.
type session struct {
	conn  net.Conn
	ctl   *control
	to    netip.AddrPort
	ports portRange // of the next connections
	note  string    // what the serving host's gateway will not do
	own   Gateway   // the one beside us; nil: none
	idle  int       // connections to hold
	next  uint32
	once  sync.Once
	stop  func() bool
}

// answerTime bounds the wait for an answer on the control connection, besides
// what the server may need for its gateway.
const answerTime = trialPatience + 10*time.Second

// dial makes a connection of the measurement. Multipath TCP could not be
// carried, and is not what is compared.
func dial(ctx context.Context, to netip.AddrPort, ports portRange) (*net.TCPConn, error) {
	d := net.Dialer{Timeout: grace, Control: ports.control}
	d.SetMultipathTCP(false)
	c, err := d.DialContext(ctx, "tcp", to.String())
	if err != nil {
		return nil, err
	}
	return c.(*net.TCPConn), nil
}

// open connects and proves to know the token. The end of ctx ends the session.
func open(ctx context.Context, to netip.AddrPort, token Token) (*session, error) {
	c, err := dial(ctx, to, portRange{})
	if err != nil {
		return nil, err
	}
	s := &session{conn: c, to: to, stop: context.AfterFunc(ctx, func() { _ = c.Close() })}
	var first []byte
	s.ctl, first = newMeasuring(token, random[[nonceSize]byte]())
	m, err := s.exchange(first)
	if err == nil {
		if w, ok := m.(welcome); ok {
			s.note = w.note
			return s, nil
		}
		err = malformed("no welcome")
	}
	s.close()
	return nil, fmt.Errorf("control connection to %v: %w", to, err)
}

// exchange sends out and waits for the next message that is not settled by
// itself.
func (s *session) exchange(out []byte) (m message, err error) {
	if err := s.conn.SetDeadline(time.Now().Add(answerTime)); err != nil {
		return nil, err
	}
	var buf [1024]byte
	for {
		if _, err := s.conn.Write(out); err != nil {
			return nil, err
		}
		n, err := s.conn.Read(buf[:])
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		if err != nil {
			return nil, err
		}
		out, err = s.ctl.receive(buf[:n], func(got message) { m = got })
		if err != nil || m != nil {
			return m, err
		}
	}
}

// sample reads the server's meters.
func (s *session) sample() (reading, error) {
	s.next++
	m, err := s.exchange(appendMessage(nil, sample{s.next}))
	if err != nil {
		return reading{}, fmt.Errorf("control connection: %w", err)
	}
	r, ok := m.(reading)
	if !ok || r.id != s.next {
		return reading{}, malformed("no reading")
	}
	return r, nil
}

// weigh asks for the memory of the gateway beside the server.
func (s *session) weigh() (Memory, error) {
	s.next++
	m, err := s.exchange(appendMessage(nil, weigh{s.next}))
	if err != nil {
		return Memory{}, fmt.Errorf("control connection: %w", err)
	}
	w, ok := m.(weight)
	if !ok || w.id != s.next {
		return Memory{}, malformed("no weight")
	}
	return w.memory, nil
}

func (s *session) close() {
	s.once.Do(func() {
		s.stop()
		_ = s.conn.Close()
	})
}

// order makes an order of the session.
func (s *session) order(w work, size int, d time.Duration) []byte {
	return order{work: w, size: uint32(size), time: d, session: s.ctl.session}.bytes()
}
