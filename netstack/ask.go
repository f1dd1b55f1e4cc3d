package netstack

import (
	"math"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
)

// A peer that is asked for a sign of life gets a probe after askSoon and others every
// askEvery, for askFor: the first may be lost, and a TCP answers two a second.
const (
	askSoon  = 10 * time.Millisecond
	askEvery = 300 * time.Millisecond
	askFor   = 2 * time.Second
)

// asking is the state of Conn.Ask: a keepalive that asks now, beside the owner's own. Conn.mu guards it.
type asking struct {
	own   keepalive // what the owner has set
	now   bool      // an Ask is under way
	heard func()    // nil: no callback
	until tcpip.Timer
}

// keepalive is what SetKeepalive is told.
type keepalive struct {
	idle, interval time.Duration
	count          int
}

// SetKeepalive sends probes on an idle connection after idle, every interval;
// count unanswered ones end it with ETIMEDOUT. idle 0 turns it off.
func (c *Conn) SetKeepalive(idle, interval time.Duration, count int) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.asking.own = keepalive{idle, interval, count}
	if c.asking.now {
		return nil
	}
	return c.setKeepaliveLocked(c.asking.own)
}

// Ask asks the peer's TCP for a sign of life and calls heard, on a goroutine of its
// own, when a segment comes. If none does within two seconds, heard is not called. A
// later call replaces heard, unless its own is nil. While sent bytes wait for their
// acknowledgement, their retransmissions ask.
func (c *Conn) Ask(heard func()) {
	a := &c.asking
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.f.alive() {
		return
	}
	a.now = true
	if heard != nil {
		a.heard = heard
	}
	c.f.asked.Store(true)
	_ = c.setKeepaliveLocked(keepalive{askSoon, askEvery, math.MaxInt32}) // an endpoint that is gone is not heard
	if a.until == nil {
		a.until = c.s.clock.AfterFunc(askFor, c.unanswered)
	} else {
		a.until.Reset(askFor)
	}
}

func (c *Conn) unanswered() {
	if c.s.hold() {
		defer c.s.release()
		c.answered(false)
	}
}

// answered ends an Ask.
func (c *Conn) answered(heard bool) {
	c.mu.Lock()
	fn := c.answeredLocked()
	c.mu.Unlock()
	if heard && fn != nil {
		fn()
	}
}

// answeredLocked is answered, and returns what is to be called if the peer was heard.
func (c *Conn) answeredLocked() (heard func()) {
	a := &c.asking
	heard = a.heard
	if a.now {
		_ = c.setKeepaliveLocked(a.own)
	}
	a.heard, a.now = nil, false
	return heard
}

// heard takes note of a segment of the peer, before gVisor has it. A segment that
// another host sends in the peer's place is no sign of life.
func (s *Stack) heard(f *flow, ack uint32) {
	f.noteAcked(ack)
	if !f.asked.Load() || !f.plausible(ack) || !f.asked.CompareAndSwap(true, false) {
		return
	}
	s.clock.AfterFunc(0, func() {
		if c := f.conn.Load(); c != nil && s.hold() {
			defer s.release()
			c.answered(true)
		}
	})
}
