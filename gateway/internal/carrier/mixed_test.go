package carrier

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/lab/twohosts"
	"github.com/smcgw/smcgw/negotiate"
	"github.com/smcgw/smcgw/rsocket"
	"github.com/smcgw/smcgw/verbs"
)

// mixedAddrs are those of a host with soft alone and of one with an adapter alone.
var mixedAddrs = [2]netip.Addr{twohosts.Addr(6), twohosts.Addr(7)}

// mixedSides are the carriers of two hosts whose devices are of both kinds: soft, and an
// adapter. changes are made to their configurations.
func mixedSides(t *testing.T, changes ...func(*config.Config)) (sides [2]*side) {
	t.Helper()
	for i, kind := range []report.DeviceKind{report.DeviceSoft, report.DeviceHW} {
		cfg := besideConfig(t)
		cfg.Carriers = []report.DeviceKind{kind}
		cfg.HW, cfg.Limits.HWFlows = config.HW{TrafficClass: 104, Mixed: config.SwitchOn}, 40
		if i < len(changes) {
			changes[i](&cfg)
		}
		sides[i] = openSide(t, cfg, always(mixedAddrs[i]), nil, verbs.RoCEUDPPort)
	}
	return sides
}

// only is the device of a side.
func only(s *side) Provider {
	if s.soft != nil {
		return s.soft
	}
	return s.hw
}

func asItIs(*config.Config) {}

// TestMixedCarries: a link between soft and an adapter is known by the client's kind to the
// negotiation, by its own to each gateway, and is proved and carries as any other.
func TestMixedCarries(t *testing.T) {
	for name, client := range map[string]int{"soft-asks": 0, "adapter-asks": 1} {
		t.Run(name, func(t *testing.T) {
			both := mixedSides(t)
			sides := [2]*side{both[client], both[1-client]}
			kind := only(sides[0]).Kind()
			for i := range 2 {
				c := meet(t, sides, only)
				require.Equal(t, kind, c.to.Kind)
				require.True(t, c.to.Mixed)
				require.Zero(t, c.to.RoCE.PKey)
				require.EqualValues(t, verbs.RoCEUDPPort, c.to.RoCE.UDPPort)
				for j, l := range c.link {
					require.Equal(t, kind, l.Offered())
					require.Equal(t, only(sides[j]).Kind(), l.Kind)
				}
				c.proveBehind(t, sides, i)
				for j, s := range sides {
					s.on(func() {
						c.link[j].Begin()
						require.NoError(t, c.link[j].EP.Commit(copy(c.link[j].EP.WriteSpan(), "hello")))
					})
				}
				for j, s := range sides {
					eventually(t, func() bool { return c.user[j].read.Load() > 0 }, "the bytes come")
					s.on(func() { require.Equal(t, "hello", string(c.link[j].EP.ReadSpan())) })
				}
				c.close(sides)
			}
			for _, s := range sides {
				eventually(t, s.isEmpty, "the memory is back")
			}
		})
	}
}

// offered makes a link of a side to the other one and closes it.
func offered(t *testing.T, s, to *side) negotiate.CarrierOffer {
	t.Helper()
	l, offer, err := only(s).Offer(s.request(&fakeUser{}, to.addr))
	require.NoError(t, err)
	s.on(l.Close)
	return offer
}

// refuses has a side answer an offer of the other's, which it must not.
func refuses(t *testing.T, s, client *side, offer negotiate.CarrierOffer) {
	t.Helper()
	_, _, err := s.answer(only(s), s.request(&fakeUser{}, client.addr), offer, &negotiate.Proposal{})
	require.ErrorIs(t, err, ErrNotHere)
	eventually(t, s.isEmpty, "nothing is kept")
}

// TestMixedIsWanted: a host that is told not to, and soft on another port than adapters
// send to, neither ask nor answer.
func TestMixedIsWanted(t *testing.T) {
	off := func(c *config.Config) { c.HW.Mixed = config.SwitchOff }
	elsewhere := func(c *config.Config) { c.Soft.UDPPort = 4793 }
	for name, c := range map[string]struct {
		which   int // side is told so
		changes []func(*config.Config)
	}{
		"soft":    {0, []func(*config.Config){off}},
		"adapter": {1, []func(*config.Config){asItIs, off}},
		"port":    {0, []func(*config.Config){elsewhere}},
	} {
		t.Run(name, func(t *testing.T) {
			sides := mixedSides(t, c.changes...)
			s, other := sides[c.which], sides[1-c.which]
			require.False(t, offered(t, s, other).Mixed)
			offer := offered(t, other, s)
			require.True(t, offer.Mixed)
			require.True(t, Answers(only(s), []negotiate.CarrierOffer{offer}, 0))
			refuses(t, s, other, offer)
		})
	}
}

// TestMixedFails: where a proof has not come back, or a queue pair has failed, the peer is
// met by devices of one kind, whichever side asks; what was proved holds no more.
func TestMixedFails(t *testing.T) {
	for name, fail := range map[string]func(*linked){
		"unproved": func(c *linked) { c.link[0].Unproved() },
		"broken":   func(c *linked) { c.link[0].Reason(&rsocket.CompletionError{Status: verbs.WCRetryExcErr}) },
	} {
		t.Run(name, func(t *testing.T) {
			sides := mixedSides(t)
			c := meet(t, sides, only)
			c.prove(t, sides)
			sides[0].on(func() { fail(c) })
			c.close(sides)
			require.False(t, offered(t, sides[0], sides[1]).Mixed)
			offer := offered(t, sides[1], sides[0])
			require.True(t, offer.Mixed, "which has seen no failure")
			refuses(t, sides[0], sides[1], offer)
			sides[0].Peers.Flush()
			require.True(t, offered(t, sides[0], sides[1]).Mixed, "everything is tried again")
		})
	}
}

// TestMixedOutlivesADevice: that a device of this host has gone says nothing about the peer.
func TestMixedOutlivesADevice(t *testing.T) {
	sides := mixedSides(t)
	c := meet(t, sides, only)
	c.prove(t, sides)
	sides[0].on(func() {
		c.link[0].Reason(ErrClosed)
		c.link[0].Reason(&rsocket.CompletionError{Status: verbs.WCWRFlushErr})
	})
	c.close(sides)
	require.True(t, offered(t, sides[0], sides[1]).Mixed)
}

// TestMixedIsProvedApart: a proof with a device of one kind says nothing about the other.
func TestMixedIsProvedApart(t *testing.T) {
	sides := mixedSides(t)
	c := meet(t, sides, only)
	c.prove(t, sides)
	sides[0].on(c.link[0].Proved)
	require.True(t, c.link[0].Warm())
	p := farPeerOf(c.link[0])
	p.meets(true)
	require.True(t, c.link[0].Warm())
	p.meets(false)
	require.False(t, c.link[0].Warm())
	c.close(sides)
}

// TestMixedWithoutAdapter: a host whose adapter has gone does not answer by it.
func TestMixedWithoutAdapter(t *testing.T) {
	sides := mixedSides(t)
	offer := offered(t, sides[0], sides[1])
	require.True(t, Answers(sides[1].hw, []negotiate.CarrierOffer{offer}, 0))
	_, err := sides[1].hw.Withdraw("rxe0/1")
	require.NoError(t, err)
	require.False(t, Answers(sides[1].hw, []negotiate.CarrierOffer{offer}, 0))
}

// ofKind is a provider of which nothing else is asked.
type ofKind struct {
	Provider
	kind negotiate.CarrierKind
}

func (k ofKind) Kind() negotiate.CarrierKind { return k.kind }

// TestAnswers: a device answers its own kind, and where the peer says so that of the other kind's, but no adapter answers
// for soft where the peer has one.
func TestAnswers(t *testing.T) {
	hw, soft := negotiate.CarrierOffer{Kind: negotiate.CarrierHW}, negotiate.CarrierOffer{Kind: negotiate.CarrierSoft}
	mixedHW, mixedSoft := hw, soft
	mixedHW.Mixed, mixedSoft.Mixed = true, true
	for _, c := range []struct {
		kind   negotiate.CarrierKind
		offers []negotiate.CarrierOffer
		want   []bool
	}{
		{negotiate.CarrierHW, []negotiate.CarrierOffer{hw, soft}, []bool{true, false}},
		{negotiate.CarrierSoft, []negotiate.CarrierOffer{hw, soft}, []bool{false, true}},
		{negotiate.CarrierSoft, []negotiate.CarrierOffer{mixedHW, mixedSoft}, []bool{true, true}},
		{negotiate.CarrierHW, []negotiate.CarrierOffer{mixedHW, mixedSoft}, []bool{true, false}},
		{negotiate.CarrierHW, []negotiate.CarrierOffer{mixedSoft}, []bool{true}},
		{negotiate.CarrierSHM, []negotiate.CarrierOffer{mixedHW, mixedSoft}, []bool{false, false}},
	} {
		for i, want := range c.want {
			require.Equal(t, want, Answers(ofKind{kind: c.kind}, c.offers, i), "%v: offer %d of %+v", c.kind, i, c.offers)
		}
	}
}
