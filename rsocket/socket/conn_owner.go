package socket

import (
	"fmt"
	"sync/atomic"
	"syscall"

	"github.com/smcgw/smcgw/rsocket"
	"github.com/smcgw/smcgw/verbs"
)

// Only the holder of the vector's token may call the functions below, except lost and broken.

// joined sets the stream's peer.
func (c *Conn) joined(peer rsocket.ConnData) error {
	if err := c.ep.Connect(peer); err != nil {
		return err
	}
	c.rx.conn, c.tx.conn = c, c
	c.rx.ring = c.ep.Ring()
	c.tx.bind(c.ep)
	c.open = true
	early := c.early
	c.early = nil
	for i := range early {
		c.complete(&early[i])
	}
	return nil
}

// connMember implements the vector's view of a connection.
type connMember Conn

// Complete implements vector.Member.
func (m *connMember) Complete(wc *verbs.WC) { (*Conn)(m).complete(wc) }

// Service implements vector.Member.
func (m *connMember) Service() { (*Conn)(m).service() }

// complete handles a completion of the queue pair.
func (c *Conn) complete(wc *verbs.WC) {
	if c.arrived != nil {
		c.arrived()
		c.arrived = nil
	}
	if c.over {
		return
	}
	if !c.open {
		c.completeEarly(wc)
		return
	}
	if c.ep.HandleWC(wc).Has(rsocket.EventWritable) {
		c.tx.placeable.Store(true)
	}
	c.giveBack()
	c.pump()
	c.publish()
}

// completeEarly keeps a completion until the peer's connection data is known. The peer may already have been told that
// the connection is up, and may spend all its credits before we are done. A peer that sends more violates the protocol:
// HandleWC then fails the unconnected stream.
func (c *Conn) completeEarly(wc *verbs.WC) {
	if len(c.early) < c.ep.RecvDepth() {
		c.early = append(c.early, *wc)
		return
	}
	c.ep.HandleWC(wc)
}

// service does the work that other goroutines have requested.
func (c *Conn) service() {
	if !c.open || c.over {
		return
	}
	c.giveBack()
	c.pump()
	if c.beat.Swap(false) {
		_ = c.ep.Keepalive() // a failure is in the stream
	}
	c.publish()
}

// giveBack tells the endpoint what has been read.
func (c *Conn) giveBack() {
	r := &c.rx
	consumed := r.consumed.Load()
	if r.discard.Load() {
		consumed = c.ep.ReceivedOffset()
		r.consumed.Store(consumed)
	}
	if n := consumed - c.ep.ConsumedOffset(); n > 0 {
		_ = c.ep.Consume(int(n)) // a failure is in the stream
	}
}

// pump makes the endpoint send what was written, and then its end.
func (c *Conn) pump() {
	t := &c.tx
	sealed := t.sealed.Load() // load before looking at what was written, so that all of it precedes the end
	if c.ep.Unposted() > 0 {
		_, _ = c.ep.Pump() // a failure is in the stream
	}
	if sealed {
		c.finale()
	}
}

// finale sends the end of the direction after the last byte.
func (c *Conn) finale() {
	if c.cfg.Linger < 0 && c.closed.Load() {
		return // the peer must see a loss
	}
	both := c.rx.discard.Load() || c.closed.Load() // after Close, a reader that has not left yet does not keep the direction open
	switch {
	case both && !c.parted:
		c.parted, c.tx.ended = true, true
		_ = c.ep.Disconnect() // a failure is in the stream
	case !c.tx.ended:
		c.tx.ended = true
		_ = c.ep.Shutdown()
	}
}

// publish makes changes visible to readers and writers and wakes them.
func (c *Conn) publish() {
	s, r, t := c.ep, &c.rx, &c.tx
	put(&r.produced, s.ReceivedOffset())
	if due := s.CreditsDue(); due != r.due.Load() {
		r.due.Store(due)
	}
	if s.PeerShut() || s.Disconnected() {
		r.ended.Store(true)
	}
	if s.Disconnected() {
		t.gone.Store(true)
	}
	if err := s.Err(); err != nil && c.failure.Load() == nil {
		if s.Deaf() || c.vec.Drained {
			c.lose(err)
		} else { // the peer's last messages may still be in the completion queue
			c.vec.Wants(&c.node)
		}
	}
	put(&c.sentMessages, s.SentMessages())
	if r.waiting.Load() && r.Ready() {
		r.rouse()
	}
	if t.waiting.Load() && t.roomy() {
		t.rouse()
	}
	if !c.isSettled && c.closed.Load() && (c.cut || s.Settled()) {
		c.isSettled = true
		close(c.settled)
	}
}

// put stores a changed value. It avoids needless stores because other goroutines keep reading the word.
func put(word *atomic.Uint64, n uint64) {
	if word.Load() != n {
		word.Store(n)
	}
}

// lost ends the connection for a reason that did not come through the queue pair. It first handles what came before:
// only the drained completion queue tells whether the peer had ended in order. Nothing is sent any more when lost
// returns.
func (c *Conn) lost(err error) {
	// Keep only its text: to a program, a loss must be ECONNRESET and must not match any other error, such as io.EOF,
	// net.ErrClosed, os.ErrDeadlineExceeded or ECONNREFUSED.
	err = fmt.Errorf("%w: %s", syscall.ECONNRESET, err.Error())
	_ = c.vec.Do(func() { c.lostNow(err) })
}

// broken handles an event of the queue pair. The event may be late, so the state decides.
func (c *Conn) broken(event verbs.EventType) {
	_ = c.vec.Do(func() {
		if c.qp.State() == verbs.QPSErr {
			c.lostNow(fmt.Errorf("%w: %v", rsocket.ErrConnection, event))
		}
	})
}

// ended reports whether both directions were ended in order, even if the acknowledgement of our last message is
// missing.
func (c *Conn) ended() bool {
	return c.ep.PeerShut() && c.tx.ended && c.ep.Placed() && c.ep.Unposted() == 0
}

func (c *Conn) lostNow(err error) {
	if c.over || c.cut {
		return
	}
	c.vec.Drain()
	c.cut = true
	switch {
	case !c.open || c.ep.Disconnected():
	case c.ended():
		c.ep.EndInOrder()
	default:
		c.ep.Lose(err)
	}
	_ = c.qp.Modify(&verbs.QPAttr{State: verbs.QPSErr}, verbs.QPAttrState) // flushes what still waits to be sent
	if c.open {
		c.publish()
	}
}
