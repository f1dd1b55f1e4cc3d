package rsocket

import "github.com/smcgw/smcgw/rmb"

// RingSize returns the size of the receive ring, or of the one that follows it.
func (e *Endpoint) RingSize() int { return e.stream.RingSize() }

// GrantsSpent reports whether the peer has filled everything it was granted since the last call: it may have waited for
// room.
func (e *Endpoint) GrantsSpent() bool { return e.stream.GrantsSpent() }

// CanSwitchRing reports whether the receive ring can be exchanged now: the peer understands it, no exchange is under way,
// and the ring of the last one has been taken back with [Endpoint.RetiredRing].
func (e *Endpoint) CanSwitchRing() bool {
	return !e.closed && e.nextRing == nil && e.oldRing == nil && e.stream.CanSwitchRing()
}

// SwitchRing grants the peer another ring after what has been granted of the present one. r is of the endpoint's arena and
// the endpoint's from here on; where there is an error, as of [Stream.SwitchRing], it stays the caller's.
func (e *Endpoint) SwitchRing(r *rmb.Region) error {
	if !e.CanSwitchRing() {
		return ErrState
	}
	if err := e.stream.SwitchRing(r.Bytes(), r.Addr(), r.RKey()); err != nil {
		return err
	}
	e.nextRing = r
	_ = e.postControls() // a failure is in the stream
	e.retireRing()
	return nil
}

// retireRing notices the end of an exchange.
func (e *Endpoint) retireRing() {
	if e.nextRing != nil && e.stream.RingRetired() {
		e.oldRing, e.ring, e.nextRing = e.ring, e.nextRing, nil
	}
}

// RetiredRing returns, once, the ring that an exchange has left over: neither side uses it any more, and it is the
// caller's to free.
func (e *Endpoint) RetiredRing() *rmb.Region {
	r := e.oldRing
	e.oldRing = nil
	return r
}
