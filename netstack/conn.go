package netstack

import (
	"net/netip"
	"sync/atomic"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/waiter"
)

// Conn is the wire leg of one connection. Read and Write do not block. One reader and one writer may work at the same time as
// any other method. The owner must end a Conn by exactly one of Close, Abort
// and Forget (further calls are harmless).
type Conn struct {
	mini  mini
	whole *stream // of the endpoint, in phase legWhole

	s      *Stack
	f      *flow
	synRTT time.Duration

	notify  notifier
	asking  asking
	closing atomic.Bool // Close was called: leave the table when gVisor is done
	ended   atomic.Bool
}

// newConn makes the connection of f.
func newConn(s *Stack, f *flow) *Conn {
	c := &Conn{s: s, f: f}
	c.notify.entry = waiter.NewFunctionEntry(
		waiter.ReadableEvents|waiter.WritableEvents|waiter.EventHUp|waiter.EventErr, c.event)
	c.f.wq.EventRegister(&c.notify.entry)
	return c
}

// event runs on gVisor's goroutines, with locks of gVisor held.
func (c *Conn) event(waiter.EventMask) {
	if c.closing.Load() && c.Over() {
		c.s.retire(c.f)
		return
	}
	c.notify.call()
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
func (c *Conn) SYNRTT() time.Duration { return c.synRTT }

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
	if c.ended.Load() || c.closing.Swap(true) {
		return nil
	}
	c.notify.fn.Store(nil)
	c.answered(false)
	c.endUnread()
	err := c.want(func(s *stream) error {
		err := s.SetUserTimeout(c.s.cfg.CloseTimeout)
		s.ep.Close()
		return err
	})
	if c.Over() {
		c.s.retire(c.f)
	}
	return err
}

// inTimeWait reports whether f is closed but for the wait.
func (f *flow) inTimeWait() bool {
	c := f.conn.Load()
	return c != nil && c.closing.Load() && c.mini.phase.Load() == legWhole && tcp.EndpointState(c.whole.ep.State()) == tcp.StateTimeWait
}

// Abort resets the connection. What is unread or unsent is lost; the tuple
// lingers as dead.
func (c *Conn) Abort() {
	c.f.leave()
	if c.ended.Swap(true) {
		return
	}
	defer c.leave()
	c.notify.fn.Store(nil)
	c.f.reset.Store(true)
	c.end(true) // the reset leaves before the flow is dead
	c.s.retire(c.f)
}

// Forget ends the connection without a packet; the tuple lingers as dead.
func (c *Conn) Forget() {
	c.f.leave()
	if c.ended.Swap(true) {
		return
	}
	defer c.leave()
	c.notify.fn.Store(nil)
	c.s.retire(c.f)
	c.end(false) // the reset of an endpoint is swallowed
}
