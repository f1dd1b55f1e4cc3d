package rsocket

import (
	"errors"

	"github.com/smcgw/smcgw/verbs"
)

// ErrProbe is a probe that came back with different bytes.
var ErrProbe = errors.New("probe came back damaged")

// Probe sends n bytes, at most [MaxProbe] and half of either ring, for the peer to send back. This proves that a
// carrier works in both directions with packets of that size. Only gateways are probed, only by the side that
// connected, and only before the first byte. EventProved reports that the same bytes came back; the caller decides how
// long to wait. The stream still starts at offset zero. Probe may be repeated with the same arguments until the echo
// arrives.
func (e *Endpoint) Probe(n int, seed uint64) error {
	c, err := e.stream.Probe(n)
	if err != nil {
		return err
	}
	e.seed = seed
	// The end of our ring is still unused: the echo arrives at its start.
	start := len(e.ring.Bytes()) - n
	fillProbe(e.ring.Bytes()[start:], seed)
	return e.post(c.Write, regionSGE(e.ring, start, n), verbs.SendPush)
}

// echo answers the peer's probe, if there is one, from where it arrived. The peer sends nothing else there before it
// has the answer.
func (e *Endpoint) echo() {
	if c, ok := e.stream.Echo(); ok {
		_ = e.post(c.Write, regionSGE(e.ring, 0, c.Length), verbs.SendPush) // a failure is in the stream
	}
}

// fillProbe writes the pattern of a seed (xorshift64). Every probe has another seed, so stale memory cannot pass for an
// echo.
func fillProbe(b []byte, seed uint64) {
	for i := range b {
		b[i], seed = nextProbe(seed)
	}
}

// proved reports whether b is the pattern of the seed.
func proved(b []byte, seed uint64) bool {
	var want byte
	for i := range b {
		if want, seed = nextProbe(seed); b[i] != want {
			return false
		}
	}
	return len(b) > 0
}

func nextProbe(x uint64) (byte, uint64) {
	x |= 1 << 63 // xorshift maps zero to zero
	x ^= x << 13
	x ^= x >> 7
	x ^= x << 17
	return byte(x >> 32), x
}
