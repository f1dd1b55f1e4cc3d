package rsocket

import (
	"errors"
	"fmt"

	"github.com/smcgw/smcgw/verbs"
)

// ErrProbe is a probe that came back with other bytes than were sent.
var ErrProbe = errors.New("probe came back damaged")

// Probe sends n bytes, at most [MaxProbe], for the peer to send back: the proof that a carrier works in both directions
// with packets of that size. Only gateways are probed, only by the side that connected, and only before the first byte.
// EventProved tells that the same bytes came back; how long to wait is the caller's business. The stream starts at
// offset zero all the same.
func (e *Endpoint) Probe(n int, seed uint64) error {
	c, err := e.stream.Probe(n)
	if err != nil {
		return err
	}
	e.seed = seed
	span, local, err := e.probeSpan(&c)
	if err != nil {
		return err
	}
	fillProbe(span, seed)
	return e.post(c.Write, local, verbs.SendPush|e.mappedFlag())
}

// echo answers the peer's probe, if there is one, with what arrived.
func (e *Endpoint) echo() {
	c, ok := e.stream.Echo()
	if !ok {
		return
	}
	span, local, err := e.probeSpan(&c)
	if err != nil {
		return
	}
	copy(span, e.stream.ProbeBytes(c.Length))
	_ = e.post(c.Write, local, verbs.SendPush|e.mappedFlag()) // a failure is in the stream
}

// probeSpan returns the memory a probe is sent from: the start of the send buffer, which holds nothing yet, or of the
// peer's ring.
func (e *Endpoint) probeSpan(c *Control) ([]byte, verbs.SGE, error) {
	if e.mapper == nil {
		return e.send.Bytes()[:c.Length], verbs.SGE{Addr: e.send.Addr(), Length: uint32(c.Length), LKey: e.send.LKey()}, nil
	}
	span, err := e.mapper.MapRemote(c.RKey, c.RemoteAddr, c.Length)
	if err != nil {
		err = fmt.Errorf("map peer's ring: %w: %w", ErrConnection, err)
		e.stream.Fail(err)
		return nil, verbs.SGE{}, err
	}
	return span, verbs.SGE{Addr: c.RemoteAddr, Length: uint32(c.Length), LKey: c.RKey}, nil
}

func (e *Endpoint) mappedFlag() verbs.SendFlags {
	if e.mapper == nil {
		return 0
	}
	return verbs.SendMapped
}

// fillProbe writes the pattern of a seed (xorshift64): no two probes look alike, so stale memory cannot pass.
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
	x |= 1 << 63 // zero would stay zero
	x ^= x << 13
	x ^= x >> 7
	x ^= x << 17
	return byte(x >> 32), x
}
