package socket

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/smcgw/smcgw/verbs"
)

const (
	// helloTimeout bounds the exchange if the context does not.
	helloTimeout = 10 * time.Second
	// oobReady and oobBye are single bytes after the hello. oobReady: the client's queue pair is connected. oobBye: the
	// sender's queue pair is down and writes no more.
	oobReady byte = 1
	oobBye   byte = 2
)

// Client makes a connection by exchanging queue pair data over oob, a byte stream to a peer that calls Server. Devices
// without a communication manager connect this way. From then on the connection owns oob, whose end is the loss of the
// peer. On an error oob is closed.
func (s *Stack) Client(ctx context.Context, oob net.Conn, cfg ConnConfig) (*Conn, error) {
	return s.outOfBand(ctx, oob, cfg, true)
}

// Server makes the other end of a connection made by Client.
func (s *Stack) Server(ctx context.Context, oob net.Conn, cfg ConnConfig) (*Conn, error) {
	return s.outOfBand(ctx, oob, cfg, false)
}

func (s *Stack) outOfBand(ctx context.Context, oob net.Conn, cfg ConnConfig, client bool) (*Conn, error) {
	op, count := "accept", &s.counters.accepted
	if client {
		op, count = "dial", &s.counters.dialed
	}
	ctx, cancel := s.within(ctx)
	defer cancel()
	c, err := s.meet(ctx, oob, cfg, client)
	if err != nil {
		_ = oob.Close()
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return nil, &net.OpError{Op: op, Net: "rsocket", Source: oob.LocalAddr(), Addr: oob.RemoteAddr(), Err: timely(err)}
	}
	count.Add(1)
	return c, nil
}

func (s *Stack) meet(ctx context.Context, oob net.Conn, cfg ConnConfig, client bool) (*Conn, error) {
	deadline, ok := ctx.Deadline()
	if !ok {
		deadline = time.Now().Add(helloTimeout)
	}
	_ = oob.SetDeadline(deadline)
	past := context.AfterFunc(ctx, func() { _ = oob.SetDeadline(time.Unix(1, 0)) })
	defer past()
	c, err := s.greet(oob, cfg, client)
	if err != nil {
		return nil, err
	}
	l := &oobLink{conn: oob, over: make(chan struct{})}
	if !past() {
		return nil, errors.Join(context.Cause(ctx), c.discard())
	}
	_ = oob.SetDeadline(time.Time{})
	if err := c.begin(l, oob.LocalAddr(), oob.RemoteAddr()); err != nil {
		return nil, errors.Join(err, c.discard())
	}
	go l.watch(c)
	return c, nil
}

// greet exchanges hellos and connects the queue pair. The server is connected when it answers, but posts nothing until
// it knows that the client is connected.
func (s *Stack) greet(oob net.Conn, cfg ConnConfig, client bool) (c *Conn, err error) {
	var peer hello
	if !client {
		if err := readHello(oob, &peer); err != nil {
			return nil, err
		}
	}
	if c, err = s.newConn(cfg); err != nil {
		return nil, err
	}
	if err = c.meet(oob, &peer, client); err != nil {
		return nil, errors.Join(err, c.discard())
	}
	return c, nil
}

func (c *Conn) meet(oob net.Conn, peer *hello, client bool) error {
	if c.stack.dev.Port().LinkLayer == verbs.LinkLayerInfiniBand { // the hello has no LID
		return fmt.Errorf("out of band on InfiniBand: %w", verbs.ErrNotSupported)
	}
	own, gidIndex := c.hello(oob)
	if client {
		if err := writeAll(oob, own.bytes()); err != nil {
			return err
		}
		if err := readHello(oob, peer); err != nil {
			return err
		}
	}
	if err := c.joinPeer(peer.data); err != nil {
		return err
	}
	var err error
	doErr := c.vec.Do(func() { err = verbs.Connect(c.qp, connectAttr(&own, peer, gidIndex)) })
	if err = errors.Join(doErr, err); err != nil {
		return err
	}
	if client {
		return writeAll(oob, []byte{oobReady})
	}
	if err := writeAll(oob, own.bytes()); err != nil {
		return err
	}
	var ready [1]byte
	if _, err := io.ReadFull(oob, ready[:]); err != nil {
		return err
	}
	if ready[0] != oobReady {
		return ErrHello
	}
	return nil
}

// hello describes this end. It prefers the GID of the address that the peer sees.
func (c *Conn) hello(oob net.Conn) (h hello, gidIndex uint8) {
	port := c.stack.dev.Port()
	h = hello{
		qpn: c.qp.Num(), psn: randomPSN(), udpPort: port.UDPPort, mtu: port.ActiveMTU,
		data: c.ep.ConnData(),
	}
	for i, g := range port.GIDs {
		if g.Type != verbs.GIDTypeRoCEv1 && !g.Empty() && (h.gid == verbs.GID{} || addrOf(oob.LocalAddr()) == g.GID.Addr().String()) {
			h.gid, gidIndex = g.GID, uint8(i)
		}
	}
	return h, gidIndex
}

func addrOf(a net.Addr) string {
	host, _, _ := net.SplitHostPort(a.String())
	return host
}

func randomPSN() uint32 {
	var b [4]byte
	_, _ = rand.Read(b[:])
	return binary.BigEndian.Uint32(b[:]) & 0xffffff
}

func connectAttr(own, peer *hello, gidIndex uint8) verbs.QPAttr {
	attr := verbs.ConnectAttr(peer.qpn)
	attr.RQPSN, attr.SQPSN = peer.psn, own.psn
	attr.PathMTU = min(own.mtu, peer.mtu)
	attr.MaxRDAtomic, attr.MaxDestRDAtomic = 0, 0
	attr.AH = verbs.AHAttr{DGID: peer.gid, UDPPort: peer.udpPort, SGIDIndex: gidIndex, HopLimit: 64, Port: 1}
	return attr
}

func readHello(r io.Reader, h *hello) error {
	var b [helloSize]byte
	if _, err := io.ReadFull(r, b[:]); err != nil {
		return err
	}
	return h.parse(b[:])
}

func writeAll(w io.Writer, b []byte) error {
	_, err := w.Write(b)
	return err
}

// oobLink is the byte stream of a connection made out of band.
type oobLink struct {
	conn net.Conn
	bye  atomic.Bool   // the peer said that its queue pair is down
	over chan struct{} // closed when the stream has ended
	said sync.Once
}

// watch waits for the end of the stream. A peer that says bye has closed in order: its last messages came through the
// queue pair.
func (l *oobLink) watch(c *Conn) {
	defer close(l.over)
	var b [1]byte
	_, err := io.ReadFull(l.conn, b[:])
	switch {
	case err == nil && b[0] == oobBye:
		l.bye.Store(true)
		err = errBye
	case err == nil:
		err = ErrHello
	}
	c.lost(fmt.Errorf("out-of-band stream: %w", err))
	l.farewell() // so that the peer need not wait until our program closes the connection
}

// errBye is a peer that closed its queue pair. It is a loss unless the stream had ended in order by then.
var errBye = errors.New("peer has closed")

// farewell tells the peer, once, that our queue pair is down. Errors are ignored: a peer that is gone need not know.
func (l *oobLink) farewell() {
	l.said.Do(func() {
		_ = l.conn.SetWriteDeadline(time.Now().Add(closeTimeout))
		_ = writeAll(l.conn, []byte{oobBye})
	})
}

// disconnect implements link. It does nothing: wait sends the farewell.
func (l *oobLink) disconnect() {}

// wait implements link. Our queue pair is down.
func (l *oobLink) wait() bool {
	l.farewell()
	_ = l.conn.SetReadDeadline(time.Now().Add(closeTimeout))
	<-l.over
	_ = l.conn.Close()
	return l.bye.Load()
}
