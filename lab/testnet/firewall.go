package testnet

import (
	"encoding/binary"
	"time"
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
	if v.flags()&0x12 == 0x02 {
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
	if f.Resets > 0 && now.Sub(s.expired) >= f.Resets && v.flags()&0x04 == 0 {
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
	out := append(make([]byte, vnetHeaderLen, v.tcp+20+len(options)), v.frame[vnetHeaderLen:v.tcp+20]...)
	out = append(out, options...)
	backTo(out)
	src, dst := v.addresses()
	at := v.ip + 12
	if v.v6 {
		at = v.ip + 8
	}
	copy(out[at:], dst)
	copy(out[at+len(dst):], src)
	copy(out[v.tcp:], v.frame[v.tcp+2:v.tcp+4])
	copy(out[v.tcp+2:], v.frame[v.tcp:v.tcp+2])
	return finish(out, v, flags, seq, ack, window, options)
}

// onward returns a segment without payload in the direction of v.
func (v frameView) onward(flags byte, seq, ack uint32, window uint16, options []byte) []byte {
	out := append(make([]byte, vnetHeaderLen, v.tcp+20+len(options)), v.frame[vnetHeaderLen:v.tcp+20]...)
	return finish(append(out, options...), v, flags, seq, ack, window, options)
}

func finish(out []byte, v frameView, flags byte, seq, ack uint32, window uint16, options []byte) []byte {
	binary.BigEndian.PutUint32(out[v.tcp+4:], seq)
	binary.BigEndian.PutUint32(out[v.tcp+8:], ack)
	out[v.tcp+12], out[v.tcp+13] = byte(20+len(options))/4<<4, flags
	binary.BigEndian.PutUint16(out[v.tcp+14:], window)
	n := frameView{frame: out, ip: v.ip, tcp: v.tcp, end: len(out), v6: v.v6, ipLast: len(out)}
	n.fixLengths()
	n.fixChecksum()
	return out
}

// reset returns a reset that the sender of v accepts.
func (v frameView) reset() []byte {
	seq := binary.BigEndian.Uint32(v.frame[v.tcp+4:])
	ack := binary.BigEndian.Uint32(v.frame[v.tcp+8:])
	size := uint32(v.ipLast - v.end)
	if v.flags()&0x03 != 0 {
		size++
	}
	return v.answer(0x14, ack, seq+size, 0, nil)
}
