package netstack

import (
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/waiter"

	"github.com/smcgw/smcgw/netstack/minisock"
)

// Conn is the wire leg of one connection. Read and Write do not block. One reader and one writer may work at the same time as
// any other method. The owner must end a Conn by exactly one of Close, Abort
// and Forget (further calls are harmless).
type Conn struct {
	s *Stack
	f *flow

	header []byte        // the network header of what a mini socket sends
	took   atomic.Uint64 // bytes that Write took before there was an endpoint
	heard  atomic.Uint64 // segments of the peer; those that wait for an endpoint count there, too
	notify notifier

	mu      sync.Mutex              // guards everything below, and the steps of the flow; gVisor's locks may be taken under it, not it under them
	sock    *minisock.Sock          // nil: over, or nothing is left in it
	whole   *stream                 // of the endpoint; read without mu when the state says that it is there
	err     error                   // what ended the connection, where that is not the endpoint's to say
	waiting []*stack.PacketBuffer   // what came while gVisor was led
	timer   tcpip.Timer             // the sock's deadline
	fires   time.Duration           // when it does; 0: it does not
	listed  bool                    // the flow is on a list of ackHolder
	wanted  []func(s *stream) error // what the owner has asked of the endpoint
	asking  asking
}

// newConn makes the connection of f, which sock moves.
func newConn(s *Stack, f *flow, sock *minisock.Sock) *Conn {
	c := &Conn{s: s, f: f, header: f.networkHeader(), sock: sock}
	c.notify.entry = waiter.NewFunctionEntry(
		waiter.ReadableEvents|waiter.WritableEvents|waiter.EventHUp|waiter.EventErr, c.event)
	c.f.wq.EventRegister(&c.notify.entry)
	return c
}

// event runs on gVisor's goroutines, with locks of gVisor held: what it brings about is done on another.
func (c *Conn) event(waiter.EventMask) {
	if c.f.state() == legClosing {
		if c.whole.over() {
			go c.delivered() // bounded: a few once a connection, and each ends
		}
		return
	}
	c.notify.call()
}

// delivered takes note that gVisor is done with a connection that was closed.
func (c *Conn) delivered() {
	if !c.s.hold() {
		return // Stack.Close ends it
	}
	defer c.s.release()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.deliveredLocked()
}

func (c *Conn) deliveredLocked() {
	if c.f.state() == legClosing && c.whole.over() {
		c.f.step(legDelivered)
		c.goneLocked()
	}
}

// SetNotify sets the function that is called whenever Read or Write may have
// something to do again, and when the connection ends. It is called from
// gVisor's goroutines, with locks held: it must only signal. It is called once
// at once, so that nothing before is missed. nil removes it.
func (c *Conn) SetNotify(fn func()) {
	c.notify.fn.Store(&fn)
	c.notify.call()
}

// Tuple names the connection.
func (c *Conn) Tuple() Tuple { return c.f.key.tuple() }

// LocalAddr is the address of the local application.
func (c *Conn) LocalAddr() netip.AddrPort { return c.f.key.tuple().Local }

// RemoteAddr is the address of the remote application.
func (c *Conn) RemoteAddr() netip.AddrPort { return c.f.key.tuple().Remote }

// Server reports whether the connection was accepted, not adopted.
func (c *Conn) Server() bool { return c.f.server }

// ISN is the sequence number of the client's SYN on the wire, on both sides.
func (c *Conn) ISN() uint32 { return c.f.isn }

// ServerISN is the sequence number of the SYN-ACK on the wire, on both sides.
func (c *Conn) ServerISN() uint32 {
	if c.f.server {
		return c.f.serve.proof.ISS
	}
	return c.f.adopt.iss
}

// SYNRTT is the round trip of the handshake, as Handler.Proved or the caller of Adopt has told it.
func (c *Conn) SYNRTT() time.Duration { return c.f.rtt }

// Confirmed tells whether the client is a gateway. The answer can change from
// unknown to any other and from no to yes. Adopted connections answer yes.
func (c *Conn) Confirmed() Confirmation {
	if !c.f.server {
		return ConfirmYes
	}
	return Confirmation(c.f.serve.confirm.Load())
}

// MarkCarrying says that the connection carries or relays: from here on no SYN
// from the network is reported for its tuple; each gets a challenge ACK.
func (c *Conn) MarkCarrying() { c.f.carrying.Store(true) }

// QuickACK makes every acknowledgement leave at once: for connections that carry
// more than a few messages.
func (c *Conn) QuickACK() {
	_ = c.want(func(e *stream) error { // much is to come
		o := e.ep.SocketOptions()
		o.SetReceiveBufferSize(max(o.GetReceiveBufferSize(), int64(min(defaultBuffer, c.s.cfg.ReceiveBuffer))), false)
		return nil
	})
	c.s.quickACK(c.f)
}

// Close ends the connection in order: what was written is still delivered, then
// a FIN. Unread bytes turn it into a reset, as with kernel sockets. It does not
// wait.
func (c *Conn) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	l := c.f.state()
	if l == legShut || l == legClosing || !l.alive() {
		return nil
	}
	c.notify.fn.Store(nil)
	c.answeredLocked()
	if l != legBroken && c.sock != nil && c.sock.Unread() > 0 {
		c.resetLocked()
		c.f.step(legCut)
		c.goneLocked()
		return nil
	}
	switch l {
	case legMini:
		c.growLocked(legClose)
	case legBroken:
		c.f.step(legClose)
		c.goneLocked()
	default:
		c.f.step(legClose)
	}
	if c.f.state() != legClosing {
		return nil
	}
	c.sock = nil
	defer c.deliveredLocked()
	return c.whole.close(c.s.cfg.CloseTimeout)
}

// inTimeWait reports whether f is closed but for the wait.
func (f *flow) inTimeWait() bool {
	c := f.conn.Load()
	return c != nil && f.state() == legClosing && tcp.EndpointState(c.whole.ep.State()) == tcp.StateTimeWait
}

// Abort resets the connection. What is unread or unsent is lost; the tuple
// lingers as dead.
func (c *Conn) Abort() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.f.alive() {
		return
	}
	c.notify.fn.Store(nil)
	c.resetLocked() // it leaves before the flow is dead
	c.f.step(legAbort)
	c.goneLocked()
}

// Forget ends the connection without a packet; the tuple lingers as dead.
func (c *Conn) Forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	l := c.f.state()
	if !c.f.step(legForget) {
		return
	}
	c.notify.fn.Store(nil)
	if l.endpoint() {
		c.whole.ep.Abort() // its reset is swallowed
	}
	c.goneLocked()
}
