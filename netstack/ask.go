package netstack

import (
	"math"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
)

// A peer that is asked for a sign of life gets a probe after askSoon and further ones every askEvery, for askFor: the
// first may be lost, and a TCP answers two a second.
const (
	askSoon  = 10 * time.Millisecond
	askEvery = 300 * time.Millisecond
	askFor   = 2 * time.Second
)

// asking is the state of Conn.Ask, a keepalive that probes immediately and temporarily replaces the owner's. Conn.mu
// guards it.
type asking struct {
	own   keepalive // the owner's setting
	now   bool      // an Ask is in progress
	heard func()    // nil if there is no callback
	until tcpip.Timer
}

// keepalive holds the arguments of SetKeepalive.
type keepalive struct {
	idle, interval time.Duration
	count          int
}

// SetKeepalive sends probes on an idle connection after idle and then every interval; count unanswered ones end it with
// ETIMEDOUT. idle 0 turns it off.
func (c *Conn) SetKeepalive(idle, interval time.Duration, count int) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.asking.own = keepalive{idle, interval, count}
	if c.asking.now {
		return nil
	}
	return c.setKeepaliveLocked(c.asking.own)
}

// Ask asks the peer's TCP for a sign of life and calls heard, on a goroutine of its own, when a segment arrives. If
// none arrives within two seconds, heard is not called. A later call replaces heard, unless its own is nil. While sent
// bytes are unacknowledged, their retransmissions serve as probes.
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
	_ = c.setKeepaliveLocked(keepalive{askSoon, askEvery, math.MaxInt32}) // an error means that the endpoint is gone
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

// answeredLocked ends an Ask, and returns the function to call if the peer was heard.
func (c *Conn) answeredLocked() (heard func()) {
	a := &c.asking
	heard = a.heard
	if a.now {
		_ = c.setKeepaliveLocked(a.own)
	}
	a.heard, a.now = nil, false
	return heard
}

// heard records a segment of the peer before gVisor gets it. A segment that another host sends in the peer's place is
// no sign of life.
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
