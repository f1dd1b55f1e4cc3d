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

// Conn is the wire leg of one connection. Read and Write do not block. One reader, one writer and any other method may
// run concurrently. The owner must end a Conn with exactly one of Close, Abort and Forget; further calls are harmless.
type Conn struct {
	s *Stack
	f *flow

	header []byte        // network header of the mini socket's packets
	took   atomic.Uint64 // bytes that Write accepted before there was an endpoint
	heard  atomic.Uint64 // segments of the peer; those that wait for an endpoint count as soon as they arrive
	notify notifier

	mu      sync.Mutex              // guards everything below and the steps of the flow; taken before gVisor's locks, never after
	sock    *minisock.Sock          // nil: over, or nothing is left in it
	whole   *stream                 // the endpoint's; read without mu if the state says that it exists
	err     error                   // what ended the connection, if not known from the endpoint
	waiting []*stack.PacketBuffer   // packets that arrived while gVisor was being led
	timer   tcpip.Timer             // the sock's deadline
	fires   time.Duration           // when timer fires; 0: it is not running
	listed  bool                    // the flow is on a list of ackHolder
	wanted  []func(s *stream) error // requests of the owner for the endpoint
	asking  asking
}

// newConn returns the connection of f, moved by sock.
func newConn(s *Stack, f *flow, sock *minisock.Sock) *Conn {
	c := &Conn{s: s, f: f, header: f.networkHeader(), sock: sock}
	c.notify.entry = waiter.NewFunctionEntry(
		waiter.ReadableEvents|waiter.WritableEvents|waiter.EventHUp|waiter.EventErr, c.event)
	c.f.wq.EventRegister(&c.notify.entry)
	return c
}

// event runs on gVisor's goroutines with gVisor's locks held, so its consequences are left to another goroutine.
func (c *Conn) event(waiter.EventMask) {
	if c.f.state() == legClosing {
		if c.whole.over() {
			go c.delivered() // bounded: a few per connection, and each ends
		}
		return
	}
	c.notify.call()
}

// delivered ends a closed connection once gVisor is done with it.
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

// SetNotify sets the function that is called whenever Read or Write may make progress again, and when the connection
// ends. It is called from gVisor's goroutines with locks held, so it must only signal. SetNotify calls it once
// immediately, so that no earlier event is missed. nil removes it.
func (c *Conn) SetNotify(fn func()) {
	c.notify.fn.Store(&fn)
	c.notify.call()
}

// Tuple returns the tuple of the connection.
func (c *Conn) Tuple() Tuple { return c.f.key.tuple() }

// LocalAddr returns the address of the local application.
func (c *Conn) LocalAddr() netip.AddrPort { return c.f.key.tuple().Local }

// RemoteAddr returns the address of the remote application.
func (c *Conn) RemoteAddr() netip.AddrPort { return c.f.key.tuple().Remote }

// Server reports whether the connection was accepted rather than adopted.
func (c *Conn) Server() bool { return c.f.server }

// ISN returns the sequence number of the client's SYN on the wire. It is the same on both sides.
func (c *Conn) ISN() uint32 { return c.f.isn }

// ServerISN returns the sequence number of the SYN-ACK on the wire. It is the same on both sides.
func (c *Conn) ServerISN() uint32 {
	if c.f.server {
		return c.f.serve.proof.ISS
	}
	return c.f.adopt.iss
}

// SYNRTT returns the round trip of the handshake, as Handler.Proved or the caller of Adopt has given it.
func (c *Conn) SYNRTT() time.Duration { return c.f.rtt }

// Confirmed tells whether the client is a gateway. The answer may change from unknown to yes or no, and from no to yes.
// For adopted connections it is always yes.
func (c *Conn) Confirmed() Confirmation {
	if !c.f.server {
		return ConfirmYes
	}
	return Confirmation(c.f.serve.confirm.Load())
}

// MarkCarrying says that the connection carries or relays. From here on SYNs from the network are not reported for its
// tuple; each gets a challenge ACK.
func (c *Conn) MarkCarrying() { c.f.carrying.Store(true) }

// QuickACK disables delayed acknowledgements, and prepares for more than a few messages.
func (c *Conn) QuickACK() {
	_ = c.want(func(e *stream) error { // much data is to come
		o := e.ep.SocketOptions()
		o.SetReceiveBufferSize(max(o.GetReceiveBufferSize(), int64(min(defaultBuffer, c.s.cfg.ReceiveBuffer))), false)
		return nil
	})
	c.s.quickACK(c.f)
}

// Close ends the connection in order: what was written is still delivered, followed by a FIN. If there are unread bytes
// it sends a reset instead, like a kernel socket. It does not block.
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

// inTimeWait reports whether f is closed and only waits in TIME_WAIT.
func (f *flow) inTimeWait() bool {
	c := f.conn.Load()
	return c != nil && f.state() == legClosing && tcp.EndpointState(c.whole.ep.State()) == tcp.StateTimeWait
}

// Abort resets the connection. Unread and unsent bytes are lost. The tuple lingers as dead.
func (c *Conn) Abort() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.f.alive() {
		return
	}
	c.notify.fn.Store(nil)
	c.resetLocked() // must leave before the flow is dead
	c.f.step(legAbort)
	c.goneLocked()
}

// Forget ends the connection without sending a packet. The tuple lingers as dead.
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
