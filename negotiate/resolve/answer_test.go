package resolve

import (
	"bytes"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/negotiate"
)

// What there is for a query is looked for when it has passed every check, and no sooner.
func TestResolverChecksBeforeItAnswers(t *testing.T) {
	keys := func(id byte) negotiate.Keys { return negotiate.Keys{bytes.Repeat([]byte{id}, 32)} }
	looks := 0
	admit := negotiate.ReasonNone
	b := newResolver(2, func(c *ResolverConfig) {
		offers := c.Offers
		c.Keys = keys(7)
		c.Offers = func(local, peer netip.Addr) []UDOffer {
			looks++
			return offers(local, peer)
		}
		c.Admit = func(_, _ netip.Addr) negotiate.Reason { return admit }
	})
	a := newResolver(1, func(c *ResolverConfig) { c.Keys = keys(7) })
	none := func(what string, todo []ResolverAction) {
		t.Helper()
		require.Empty(t, only[AnswerPeer](todo), what)
		require.Zero(t, looks, what)
	}
	q := asks(t, a, t0)
	none("port of any user", b.Receive(portB, netip.AddrPortFrom(addrA, 1024), q.Bytes, t0))
	none("other key", b.Receive(portB, portA, asks(t, newResolver(1, func(c *ResolverConfig) { c.Keys = keys(8) }), t0).Bytes, t0))
	none("no key", b.Receive(portB, portA, asks(t, newResolver(1, nil), t0).Bytes, t0))
	refusal := b.Receive(portB, portA, q.Bytes, t0)
	none("no cookie", refusal)
	again := one[SendResolution](t, a.Receive(portA, portB, one[SendResolution](t, refusal).Bytes, t0))
	admit = negotiate.ReasonOff
	none("switched off", b.Receive(portB, portA, again.Bytes, t0))
	admit = negotiate.ReasonNone

	good := one[AnswerPeer](t, b.Receive(portB, portA, again.Bytes, t0))
	require.Zero(t, looks)
	require.Len(t, b.Answer(good, t0), 3, "answer, expect, ask back")
	admit = negotiate.ReasonOff
	r, err := ParseRefused(one[SendResolution](t, b.Answer(good, t0)).Bytes)
	require.NoError(t, err)
	require.Equal(t, negotiate.ReasonOff, r.Reason, "since the check")
	looks = 0
	for range 100 {
		b.Receive(portB, portA, again.Bytes, t0)
	}
	none("too often", b.Receive(portB, portA, again.Bytes, t0))
}
