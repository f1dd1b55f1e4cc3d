package resolve

import (
	"bytes"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/smcgw/smcgw/negotiate"
	"github.com/smcgw/smcgw/negotiate/internal/clc"
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

// withOffers has a gateway use some kinds and have queue pairs of others.
func withOffers(kinds []negotiate.CarrierKind, has ...UDOffer) func(*ResolverConfig) {
	return func(c *ResolverConfig) {
		c.Carriers = kinds
		c.Offers = func(local, _ netip.Addr) (list []UDOffer) {
			for _, o := range has {
				o.GID = local.As16()
				list = append(list, o)
			}
			return list
		}
	}
}

// TestResolverMixed: queue pairs of both kinds of RoCEv2 devices talk to each other where
// both sides allow it and have no kind in common that both have a queue pair of.
func TestResolverMixed(t *testing.T) {
	soft := UDOffer{Kind: negotiate.CarrierSoft, MTU: 1024, QPN: 2, QKey: 2, UDPPort: clc.RoCEPort, Mixed: true}
	hw := UDOffer{Kind: negotiate.CarrierHW, MTU: 1024, QPN: 3, QKey: 3, UDPPort: clc.RoCEPort, Mixed: true}
	alone := func(o UDOffer) UDOffer {
		o.Mixed = false
		return o
	}
	onlySoft, onlyHW := []negotiate.CarrierKind{negotiate.CarrierSoft}, []negotiate.CarrierKind{negotiate.CarrierHW}
	both := []negotiate.CarrierKind{negotiate.CarrierHW, negotiate.CarrierSoft}
	for name, c := range map[string]struct {
		a, b func(*ResolverConfig)
		uses []UDOffer // of b; none: it refuses
	}{
		"soft asks":             {withOffers(onlySoft, soft), withOffers(onlyHW, hw), []UDOffer{hw}},
		"adapter asks":          {withOffers(onlyHW, hw), withOffers(onlySoft, soft), []UDOffer{soft}},
		"asker does not want":   {withOffers(onlySoft, alone(soft)), withOffers(onlyHW, hw), nil},
		"peer does not want":    {withOffers(onlySoft, soft), withOffers(onlyHW, alone(hw)), nil},
		"a kind in common":      {withOffers(both, hw, soft), withOffers(onlySoft, soft), []UDOffer{alone(soft)}},
		"peer has both":         {withOffers(onlySoft, soft), withOffers(both, hw, soft), []UDOffer{alone(soft)}},
		"kind without a device": {withOffers(both, soft), withOffers(onlyHW, hw), []UDOffer{hw}},
		"peer without a device": {withOffers(onlyHW, hw), withOffers(both, soft), []UDOffer{soft}},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := newResolver(1, c.a), newResolver(2, c.b)
			todo := receive(b, portB, portA, asks(t, a, t0).Bytes, t0)
			expect, answer := only[ExpectPeer](todo), only[SendResolution](todo)[0]
			proofs := only[ProvePeer](receive(a, portA, portB, answer.Bytes, t0))
			if len(c.uses) == 0 {
				require.Empty(t, expect)
				require.Empty(t, proofs)
				require.Equal(t, PeerStateRefused, stateOf(a))
				return
			}
			require.Len(t, expect, 1)
			require.Equal(t, c.uses[0].Mixed, expect[0].Offers[len(expect[0].Offers)-1].Mixed)
			want := c.uses[0]
			want.GID = addrB.As16()
			require.Equal(t, want, proofs[0].Offer)
			capable := only[PeerCapable](a.Proved(addrB, proofs[0].Proof, true, t0))
			require.Equal(t, want, capable[0].Offer)
		})
	}
}

// TestMixedOfferPort: a queue pair that adapters do not reach cannot be mixed, and shared
// memory never is.
func TestMixedOfferPort(t *testing.T) {
	r := goldenResolve()
	for i := range r.Offers {
		r.Offers[i].Mixed, r.Offers[i].UDPPort = true, clc.RoCEPort
	}
	got, err := parseResolve(AppendResolve(nil, &r))
	require.NoError(t, err)
	for _, o := range got.Offers {
		require.Equal(t, o.Kind.IsRoCE(), o.Mixed)
	}
	require.NotNil(t, findMixed(got.Offers))
	for i := range r.Offers {
		r.Offers[i].UDPPort++
	}
	_, err = parseResolve(AppendResolve(nil, &r))
	require.ErrorIs(t, err, clc.ErrMalformed)
}

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var testKey = []byte("smcgw test key")

var t0 = time.Unix(1_800_000_000, 0)

func at(d time.Duration) time.Time { return t0.Add(d) }

// event is something that happens in the world of the model.
type event struct {
	at    time.Time
	order int
	do    func()
}

// seq returns n rising bytes.
func seq(first byte, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = first + byte(i)
	}
	return b
}

// withTLV returns the message with one more TLV at its end.
func withTLV(msg []byte, typ uint16, v []byte) []byte {
	return clc.EndMessage(clc.AppendTLV(bytes.Clone(msg), typ, v), 0)
}

// requireTruncationFails checks that no proper prefix of b parses.
func requireTruncationFails(t *testing.T, b []byte, parse func([]byte) error) {
	t.Helper()
	for i := range b {
		require.ErrorIs(t, parse(b[:i]), clc.ErrShort, "prefix of %d bytes", i)
	}
	require.NoError(t, parse(b))
}
