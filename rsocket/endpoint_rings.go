package rsocket

import "github.com/smcgw/smcgw/rmb"

// RingSize returns the size of the receive ring, or of the next ring while an exchange is in progress.
func (e *Endpoint) RingSize() int { return e.stream.RingSize() }

// GrantsSpent reports whether, since the last call, the peer has filled everything it was granted and so may have
// waited for room.
func (e *Endpoint) GrantsSpent() bool { return e.stream.GrantsSpent() }

// CanSwitchRing reports whether the receive ring can be exchanged now: the peer supports it, no exchange is in
// progress, and the caller has taken the last exchange's ring with [Endpoint.RetiredRing].
func (e *Endpoint) CanSwitchRing() bool {
	return !e.closed && e.nextRing == nil && e.oldRing == nil && e.stream.CanSwitchRing()
}

// SwitchRing grants the peer another ring, after everything granted of the present one. r must come from the endpoint's
// arena. The endpoint owns r from here on; on an error, as of [Stream.SwitchRing], the caller keeps it.
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

// retireRing detects the end of an exchange.
func (e *Endpoint) retireRing() {
	if e.nextRing != nil && e.stream.RingRetired() {
		e.oldRing, e.ring, e.nextRing = e.ring, e.nextRing, nil
	}
}

// RetiredRing returns, once, the old ring of a completed exchange. Neither side uses it any more; the caller must free
// it.
func (e *Endpoint) RetiredRing() *rmb.Region {
	r := e.oldRing
	e.oldRing = nil
	return r
}
