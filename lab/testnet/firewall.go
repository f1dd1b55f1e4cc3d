package testnet

import (
	"time"

	"github.com/smcgw/smcgw/packet"
)

// Firewall tracks TCP connections and forgets idle ones. It silently drops later segments of a forgotten connection
// until Resets says that the sender gets an answer.
type Firewall struct {
	// Idle is how long a connection may be idle. 0 means that there is no firewall.
	Idle time.Duration
	// Resets is how long the segments of a forgotten connection are dropped before they are answered with a reset. 0
	// means that they are always dropped.
	Resets time.Duration
	// Since is when the firewall began to watch: a connection of which it has seen nothing has been idle since then.
	// Zero means until now.
	Since time.Time
}

// connections is the state of a firewall: all connections that it has seen. The zero value is ready to use.
type connections struct {
	seen map[string]*seen // under the keys of both directions
}

type seen struct {
	last    time.Time // of a segment that passed
	expired time.Time // when a segment was first dropped
}

type judgement int

const (
	passes judgement = iota
	dropsIt
	resetsIt
)

// pass decides about one frame.
func (c *connections) pass(f Firewall, frame []byte, now time.Time) judgement {
	v, ok := viewFrame(frame)
	if f.Idle == 0 || !ok {
		return passes
	}
	if v.Flags()&synAck == packet.FlagSYN {
		c.note(v, &seen{last: now})
		return passes
	}
	s := c.seen[v.key(false)]
	if s == nil { // the firewall knows a connection that is older than itself
		s = &seen{last: now}
		if !f.Since.IsZero() {
			s.last = f.Since
		}
		c.note(v, s)
	}
	if s.expired.IsZero() && now.Sub(s.last) <= f.Idle {
		s.last = now
		return passes
	}
	if s.expired.IsZero() {
		s.expired = now
	}
	if f.Resets > 0 && now.Sub(s.expired) >= f.Resets && v.Flags()&packet.FlagRST == 0 {
		return resetsIt
	}
	return dropsIt
}

func (c *connections) note(v frameView, s *seen) {
	if c.seen == nil || len(c.seen) > mirrorLimit {
		c.seen = map[string]*seen{}
	}
	c.seen[v.key(false)], c.seen[v.key(true)] = s, s
}

// answer returns a segment without payload from the receiver of v to its sender.
func (v frameView) answer(flags byte, seq, ack uint32, window uint16, options []byte) []byte {
	out := v.onward(flags, seq, ack, window, options)
	backTo(out)
	src, dst := v.addresses()
	at := v.ip + 12
	if v.v6 {
		at = v.ip + 8
	}
	copy(out[at:], dst)
	copy(out[at+len(dst):], src)
	copy(out[v.l4:], v.TCP[2:4])
	copy(out[v.l4+2:], v.TCP[0:2])
	return out // sums are the same with the ends swapped
}

// onward returns a segment without payload in the direction of v.
func (v frameView) onward(flags byte, seq, ack uint32, window uint16, options []byte) []byte {
	head := v.l4 + packet.TCPMinLen
	out := append(make([]byte, vnetHeaderLen, head+len(options)), v.frame[vnetHeaderLen:head]...)
	out = append(out, options...)
	t := packet.TCP(out[v.l4:])
	t.SetSeq(seq)
	t.SetAck(ack)
	t[12] = 0
	t.SetHeaderLen(len(t))
	t.SetFlags(flags)
	t.SetWindow(window)
	return v.finished(out)
}

// reset returns a reset that the sender of v accepts.
func (v frameView) reset() []byte {
	size := uint32(v.size())
	if v.Flags()&(packet.FlagSYN|packet.FlagFIN) != 0 {
		size++
	}
	return v.answer(rstAck, v.Ack(), v.Seq()+size, 0, nil)
}
