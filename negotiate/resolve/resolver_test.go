package resolve

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/internal/golden"
	"github.com/smcgw/smcgw/negotiate"
	"github.com/smcgw/smcgw/negotiate/internal/clc"
)

var (
	addrA = netip.MustParseAddr("10.0.0.1")
	addrB = netip.MustParseAddr("10.0.0.2")
	portA = netip.AddrPortFrom(addrA, defaultDatagramPort)
	portB = netip.AddrPortFrom(addrB, defaultDatagramPort)
)

// softOffer is the offer of the gateway at an address.
func softOffer(a netip.Addr, qpn uint32) UDOffer {
	return UDOffer{Kind: negotiate.CarrierSoft, MTU: 1024, QPN: qpn, QKey: qpn << 8, GID: a.As16(), UDPPort: 4791}
}

func shmOffer(name string) UDOffer {
	return UDOffer{Kind: negotiate.CarrierSHM, MTU: 4096, QPN: 9, QKey: 10, Name: name, Key: [16]byte{1}}
}

// newResolver returns a Resolver of a gateway whose id begins with this byte; hosts 0xf0.. are one kernel.
func newResolver(id byte, edit func(*ResolverConfig)) *Resolver {
	n := uint64(0)
	cfg := ResolverConfig{
		GatewayID: [16]byte{id}, HostID: [16]byte{id}, Carriers: []negotiate.CarrierKind{negotiate.CarrierSHM, negotiate.CarrierSoft},
		Nonce: func() (nonce [16]byte) {
			n++
			nonce[0] = id
			binary.BigEndian.PutUint64(nonce[8:], n)
			return nonce
		},
		Offers: func(local, _ netip.Addr) []UDOffer {
			return []UDOffer{shmOffer(fmt.Sprintf("gw-%x", id)), softOffer(local, uint32(id))}
		},
		Admit: func(_, _ netip.Addr) negotiate.Reason { return negotiate.ReasonNone },
	}
	if edit != nil {
		edit(&cfg)
	}
	return NewResolver(cfg)
}

// only returns the actions of one type.
func only[T ResolverAction](todo []ResolverAction) []T {
	var list []T
	for _, a := range todo {
		if a, ok := a.(T); ok {
			list = append(list, a)
		}
	}
	return list
}

// one returns the only action there is.
func one[T ResolverAction](t *testing.T, todo []ResolverAction) T {
	t.Helper()
	require.Len(t, todo, 1, "%#v", todo)
	a, ok := todo[0].(T)
	require.True(t, ok, "%#v", todo)
	return a
}

// receive has a Resolver take a message, and answer it at once.
func receive(r *Resolver, local, from netip.AddrPort, b []byte, now time.Time) (todo []ResolverAction) {
	for _, a := range r.Receive(local, from, b, now) {
		if q, ok := a.(AnswerPeer); ok {
			todo = append(todo, r.Answer(q, now)...)
			continue
		}
		todo = append(todo, a)
	}
	return todo
}

// asks lets a want b and returns the query.
func asks(t *testing.T, a *Resolver, now time.Time) SendResolution {
	t.Helper()
	q := one[SendResolution](t, a.Want(addrA, addrB, true, now))
	require.Equal(t, SendResolution{To: portB, From: addrA, Bytes: q.Bytes}, q)
	return q
}

// answers lets b answer and returns the answer.
func answers(t *testing.T, b *Resolver, q SendResolution, now time.Time) SendResolution {
	t.Helper()
	sent := only[SendResolution](receive(b, portB, portA, q.Bytes, now))
	require.NotEmpty(t, sent)
	require.Equal(t, SendResolution{To: portA, From: addrB, Bytes: sent[0].Bytes}, sent[0])
	require.LessOrEqual(t, len(sent[0].Bytes), len(q.Bytes))
	return sent[0]
}

// proven lets a resolve and prove b.
func proven(t *testing.T, a, b *Resolver, now time.Time) {
	t.Helper()
	ans := answers(t, b, asks(t, a, now), now)
	pr := one[ProvePeer](t, receive(a, portA, portB, ans.Bytes, now))
	one[PeerCapable](t, a.Proved(addrB, pr.Proof, true, now))
	require.Equal(t, PeerStateProven, stateOf(a))
}

func stateOf(a *Resolver) ResolverState {
	s, _ := a.State(addrB)
	return s
}

func TestResolverHappyPath(t *testing.T) {
	a, b := newResolver(1, nil), newResolver(2, nil)
	q := asks(t, a, t0)
	require.Equal(t, PeerStateAsked, stateOf(a))
	require.Empty(t, a.Want(addrA, addrB, true, t0), "under way")

	todo := receive(b, portB, portA, q.Bytes, t0)
	require.Len(t, todo, 3, "answer, expect, ask back")
	expect := todo[1].(ExpectPeer)
	require.Equal(t, ExpectPeer{
		Peer: addrA, Local: addrB, GatewayID: [16]byte{1}, Offers: []UDOffer{softOffer(addrA, 1)}, TTL: answerTTL,
	}, expect, "another kernel: no shm")
	back := todo[2].(SendResolution)
	require.Equal(t, portA, back.To)

	pr := one[ProvePeer](t, receive(a, portA, portB, todo[0].(SendResolution).Bytes, at(time.Millisecond)))
	require.Equal(t, ProvePeer{
		Peer: addrB, Local: addrA, GatewayID: [16]byte{2}, Proof: 1, Attempt: 1, Offer: softOffer(addrB, 2),
	}, pr)
	require.Equal(t, PeerStateProving, stateOf(a))
	capable := one[PeerCapable](t, a.Proved(addrB, pr.Proof, true, at(2*time.Millisecond)))
	require.Equal(t, softOffer(addrB, 2), capable.Offer)
	require.Equal(t, answerTTL-time.Millisecond, capable.TTL)
	require.Equal(t, capable, one[PeerCapable](t, a.Want(addrA, addrB, true, at(2*time.Millisecond))))

	todo = receive(a, portA, portB, back.Bytes, at(3*time.Millisecond))
	require.Len(t, todo, 2, "answer and expect; the peer is proven, nobody asks back")
	pr = one[ProvePeer](t, receive(b, portB, portA, todo[0].(SendResolution).Bytes, at(3*time.Millisecond)))
	one[PeerCapable](t, b.Proved(addrA, pr.Proof, true, at(3*time.Millisecond)))
	require.Equal(t, ResolverStats{Queries: 1, Answers: 1, Asked: 1, Answered: 1, Proven: 1}, a.Stats())
	require.Equal(t, a.Stats(), b.Stats())
}

func TestResolverSharedMemoryFirst(t *testing.T) {
	host := func(c *ResolverConfig) { c.HostID = [16]byte{0xf0} }
	a, b := newResolver(1, host), newResolver(2, host)
	ans := answers(t, b, asks(t, a, t0), t0)
	pr := one[ProvePeer](t, receive(a, portA, portB, ans.Bytes, t0))
	require.Equal(t, shmOffer("gw-2"), pr.Offer)
	pr = one[ProvePeer](t, a.Proved(addrB, pr.Proof, false, t0))
	require.Equal(t, softOffer(addrB, 2), pr.Offer, "the next carrier")
	require.Empty(t, a.Proved(addrB, pr.Proof-1, true, t0), "the result of an earlier proof")
	require.Equal(t, PeerStateProving, stateOf(a))
	one[PeerCapable](t, a.Proved(addrB, pr.Proof, true, t0))
}

func TestResolverAsksNobodyUnasked(t *testing.T) {
	a := newResolver(1, nil)
	n := one[PeerNative](t, a.Want(addrA, addrB, false, t0))
	require.Equal(t, PeerNative{Peer: addrB, Reason: negotiate.ReasonPeerUnresolved, TTL: queryInterval}, n)
	for d := time.Second; d < time.Hour; d += 7 * time.Second {
		require.Empty(t, only[SendResolution](a.Want(addrA, addrB, false, at(d))))
		require.Empty(t, only[SendResolution](a.Tick(at(d))))
	}
	// News without an application that wants something wait for one.
	other := netip.MustParseAddrPort("10.0.0.3:999")
	require.Empty(t, a.News(addrA, other, [16]byte{3}, t0))
	require.Empty(t, a.Tick(at(time.Minute)))
	q := one[SendResolution](t, a.Want(addrA, other.Addr(), false, at(2*time.Minute)))
	require.Equal(t, other, q.To)
	// With one they are used at once.
	q = one[SendResolution](t, a.News(addrA, portB, [16]byte{2}, at(time.Hour)))
	require.Equal(t, portB, q.To)
}

func TestResolverOneQueryAMinute(t *testing.T) {
	a := newResolver(1, nil)
	var queries []time.Duration
	for d := time.Duration(0); d < 5*time.Minute; d += 100 * time.Millisecond {
		todo := append(a.Tick(at(d)), a.Want(addrA, addrB, true, at(d))...)
		for range only[SendResolution](todo) {
			queries = append(queries, d)
		}
	}
	require.Equal(t, []time.Duration{0, time.Minute, 2 * time.Minute, 3 * time.Minute, 4 * time.Minute}, queries)
	s, why := a.State(addrB)
	require.Equal(t, PeerStateUnknown, s)
	require.Equal(t, negotiate.ReasonPeerUnresolved, why)

	// News allow one more, and no more than one in five seconds.
	now := at(5*time.Minute + time.Second)
	a.Want(addrA, addrB, true, now) // the one of the fifth minute
	a.Tick(now.Add(answerTimeout))
	require.Empty(t, only[SendResolution](a.News(addrA, portB, [16]byte{2}, now.Add(3*time.Second))))
	require.Equal(t, now.Add(freshInterval), a.Deadline())
	require.Len(t, only[SendResolution](a.Tick(now.Add(freshInterval))), 1)
	require.Empty(t, only[SendResolution](a.Tick(now.Add(freshInterval+answerTimeout))))
	require.Empty(t, only[SendResolution](a.Tick(now.Add(freshInterval+50*time.Second))), "news are used once")
}

func TestResolverNoAnswer(t *testing.T) {
	a := newResolver(1, nil)
	q := asks(t, a, t0)
	require.Equal(t, at(answerTimeout), a.Deadline())
	require.Empty(t, a.Tick(at(answerTimeout-1)))
	n := one[PeerNative](t, a.Tick(at(answerTimeout)))
	require.Equal(t, PeerNative{Peer: addrB, Reason: negotiate.ReasonPeerUnresolved, TTL: queryInterval - answerTimeout}, n)
	ans := answers(t, newResolver(2, nil), q, t0)
	require.Empty(t, receive(a, portA, portB, ans.Bytes, at(answerTimeout)), "late")
	require.EqualValues(t, 1, a.Stats().Ignored)
}

// One that was late itself cannot tell whether the peer was: it asks once more, and gives a
// proof another attempt. That does not go on for ever.
func TestResolverLateItself(t *testing.T) {
	const late = answerTimeout + answerTimeout/lateShare
	a, b := newResolver(1, nil), newResolver(2, nil)
	asks(t, a, t0)
	again := one[SendResolution](t, a.Tick(at(late)))
	require.Equal(t, PeerStateAsked, stateOf(a))
	require.Equal(t, at(late+answerTimeout), a.Deadline())
	answers := only[SendResolution](receive(b, portB, portA, again.Bytes, at(late)))
	one[ProvePeer](t, receive(a, portA, portB, answers[0].Bytes, at(late+time.Millisecond)))
	now := at(late + time.Millisecond)
	for range probeTries - 1 {
		now = now.Add(probeInterval)
		one[ProvePeer](t, a.Tick(now))
	}
	now = now.Add(probeInterval + probeInterval/lateShare)
	one[ProvePeer](t, a.Tick(now))
	now = now.Add(time.Minute)
	require.Equal(t, negotiate.ReasonCarrierUnreachable, only[PeerNative](a.Tick(now))[0].Reason)

	a = newResolver(1, nil)
	asks(t, a, t0)
	one[SendResolution](t, a.Tick(at(late)))
	require.Equal(t, negotiate.ReasonPeerUnresolved, one[PeerNative](t, a.Tick(at(time.Minute))).Reason)
}

func TestResolverIgnoresWhatIsNoAnswer(t *testing.T) {
	a, b := newResolver(1, nil), newResolver(2, nil)
	good := answers(t, b, asks(t, a, t0), t0).Bytes
	spoiled := func(i int) []byte {
		m := append([]byte(nil), good...)
		m[i] ^= 1
		return m
	}
	refusal := encodeRefused(Refused{Nonce: QueryNonce{7}, Reason: negotiate.ReasonOff})
	for what, in := range map[string]struct {
		from netip.AddrPort
		msg  []byte
	}{
		"other address":      {netip.MustParseAddrPort("10.0.0.9:4790"), good},
		"other port":         {netip.AddrPortFrom(addrB, 4789), good},
		"other nonce":        {portB, spoiled(clc.HeaderLen + clc.TLVHeaderLen)},
		"refusal to another": {portB, refusal},
		"garbage":            {portB, []byte("hello")},
		"empty":              {portB, nil},
		"truncated":          {portB, good[:len(good)-1]},
		"clc":                {portB, golden.Vector(t, "proposal")},
	} {
		before := a.Stats().Ignored
		require.Empty(t, receive(a, portA, in.from, in.msg, t0), what)
		require.Equal(t, before+1, a.Stats().Ignored, what)
		require.Equal(t, PeerStateAsked, stateOf(a), what)
	}
	one[ProvePeer](t, receive(a, portA, portB, good, t0))
	require.Empty(t, receive(a, portA, portB, good, t0), "twice")
	require.Equal(t, PeerStateProving, stateOf(a))
}

func TestResolverTranslatedAddresses(t *testing.T) {
	// The asker's address is translated: the answer says what it looks like from there.
	a, b := newResolver(1, nil), newResolver(2, nil)
	q := asks(t, a, t0)
	outside := netip.MustParseAddrPort("192.0.2.1:4790")
	sent := only[SendResolution](receive(b, portB, outside, q.Bytes, t0))
	require.Len(t, sent, 2)
	n := one[PeerNative](t, receive(a, portA, portB, sent[0].Bytes, t0))
	require.Equal(t, PeerNative{Peer: addrB, Reason: negotiate.ReasonNAT, TTL: queryInterval}, PeerNative{n.Peer, n.Reason, n.Remote, queryInterval})
	require.Positive(t, n.TTL)
	// The port alone is translated: then any process on that host may have asked.
	a = newResolver(1, nil)
	require.Empty(t, receive(b, portB, netip.AddrPortFrom(addrA, 1024), asks(t, a, t0).Bytes, t0))
	// The target is translated: the asked host sees that.
	a = newResolver(1, nil)
	todo := receive(b, netip.MustParseAddrPort("10.9.9.9:4790"), portA, asks(t, a, t0).Bytes, t0)
	refusal := one[SendResolution](t, todo)
	n = one[PeerNative](t, receive(a, portA, portB, refusal.Bytes, t0))
	require.Equal(t, negotiate.ReasonNAT, n.Reason)
	require.True(t, n.Remote)
	require.Equal(t, PeerStateRefused, stateOf(a))
}

func TestResolverRefusals(t *testing.T) {
	for _, tc := range []struct {
		edit func(*ResolverConfig)
		want negotiate.Reason
	}{
		{func(c *ResolverConfig) {
			c.Admit = func(_, _ netip.Addr) negotiate.Reason { return negotiate.ReasonPolicy }
		}, negotiate.ReasonPolicy},
		{func(c *ResolverConfig) { c.Offers = func(_, _ netip.Addr) []UDOffer { return nil } }, negotiate.ReasonNoCommonCarrier},
		{func(c *ResolverConfig) {
			c.Offers = func(_, _ netip.Addr) []UDOffer { return []UDOffer{shmOffer("other-kernel")} }
		}, negotiate.ReasonNoCommonCarrier},
		{func(c *ResolverConfig) { c.Keys = negotiate.Keys{[]byte("key")} }, negotiate.ReasonAuthFailed},
	} {
		a, b := newResolver(1, nil), newResolver(2, tc.edit)
		todo := receive(b, portB, portA, asks(t, a, t0).Bytes, t0)
		n := one[PeerNative](t, receive(a, portA, portB, one[SendResolution](t, todo).Bytes, t0))
		require.Equal(t, tc.want, n.Reason)
		require.True(t, n.Remote)
		require.GreaterOrEqual(t, n.TTL, queryInterval)
		require.Empty(t, b.peers, "nothing is kept of who is refused")
		n = one[PeerNative](t, a.Want(addrA, addrB, true, at(time.Second)))
		require.Equal(t, tc.want, n.Reason, "remembered")
		require.True(t, n.Remote)
		// News overrule it; so does a flush, within the limits.
		require.Len(t, only[SendResolution](a.News(addrA, portB, [16]byte{2}, at(10*time.Second))), 1)
		require.Equal(t, ResolverStats{Asked: 1, RefusedPeers: 1}, b.Stats())
	}
}

// TestResolverRefusalTTL: a peer may say for how long asking is useless, within bounds.
func TestResolverRefusalTTL(t *testing.T) {
	for said, want := range map[time.Duration]time.Duration{
		time.Second: queryInterval, 3 * time.Minute: 3 * time.Minute, maxAnswerTTL: negotiate.DefaultNegativeTTL,
	} {
		a := newResolver(1, nil)
		q, err := parseResolve(asks(t, a, t0).Bytes)
		require.NoError(t, err)
		no := encodeRefused(Refused{Nonce: q.Nonce, Reason: negotiate.ReasonPolicy, TTL: said})
		require.Equal(t, want, one[PeerNative](t, receive(a, portA, portB, no, t0)).TTL, said)
	}
}

func TestResolverFlush(t *testing.T) {
	a := newResolver(1, nil)
	b := newResolver(2, func(c *ResolverConfig) {
		c.Admit = func(_, _ netip.Addr) negotiate.Reason { return negotiate.ReasonOff }
	})
	receive(a, portA, portB, answers(t, b, asks(t, a, t0), t0).Bytes, t0)
	require.Equal(t, []ResolverAction{PeerForgotten{Peer: addrB}}, a.Flush())
	require.Empty(t, only[SendResolution](a.Want(addrA, addrB, true, at(30*time.Second))), "the limit stays")
	require.Len(t, only[SendResolution](a.Want(addrA, addrB, true, at(queryInterval))), 1, "long before the refusal ends")
}

func TestResolverVersions(t *testing.T) {
	b := newResolver(2, nil)
	q := goldenResolve()
	q.Target = portB
	q.MinVersion, q.MaxVersion = 2, 3
	r, err := ParseRefused(one[SendResolution](t, receive(b, portB, portA, AppendResolve(nil, &q), t0)).Bytes)
	require.NoError(t, err)
	require.Equal(t, Refused{Nonce: q.Nonce, Reason: negotiate.ReasonVersion}, r)
	q.MinVersion = 1
	r, err = ParseRefused(one[SendResolution](t, receive(b, portB, portA, withTLV(AppendResolve(nil, &q), 0x8077, nil), t0)).Bytes)
	require.NoError(t, err)
	require.Equal(t, negotiate.ReasonVersion, r.Reason)
	keyed := func(c *ResolverConfig) { c.Keys = negotiate.Keys{testKey} }
	asker, asked := newResolver(1, keyed), newResolver(2, keyed)
	newer := withTLV(asks(t, asker, t0).Bytes, 0x8077, nil) // its MAC is not looked at
	told := one[SendResolution](t, receive(asked, portB, portA, newer, t0))
	require.Equal(t, negotiate.ReasonVersion, one[PeerNative](t, receive(asker, portA, portB, told.Bytes, t0)).Reason, "believed")

	sent := only[SendResolution](receive(b, portB, portA, AppendResolve(nil, &q), t0))
	ans, err := ParseResolved(sent[0].Bytes)
	require.NoError(t, err)
	require.EqualValues(t, 1, ans.Version)

	a := newResolver(1, nil)
	sent = only[SendResolution](receive(b, portB, portA, asks(t, a, t0).Bytes, t0))
	sent[0].Bytes[5] = 9
	n := one[PeerNative](t, receive(a, portA, portB, sent[0].Bytes, t0))
	require.Equal(t, negotiate.ReasonVersion, n.Reason)
}

func TestResolverAuthenticated(t *testing.T) {
	keyed := func(keys ...string) func(*ResolverConfig) {
		return func(c *ResolverConfig) {
			for _, k := range keys {
				c.Keys = append(c.Keys, []byte(k))
			}
		}
	}
	exchanged := func(a, b *Resolver) []ResolverAction { // query, cookie, query, answer
		q := asks(t, a, t0)
		again := one[SendResolution](t, receive(a, portA, portB, answers(t, b, q, t0).Bytes, t0))
		require.Greater(t, len(again.Bytes), minQueryLen)
		return receive(a, portA, portB, only[SendResolution](receive(b, portB, portA, again.Bytes, t0))[0].Bytes, t0)
	}
	a, b := newResolver(1, keyed("one")), newResolver(2, keyed("one"))
	one[ProvePeer](t, exchanged(a, b))
	require.Equal(t, PeerStateProving, stateOf(a))
	a, b = newResolver(1, keyed("two", "one")), newResolver(2, keyed("one", "two"))
	one[ProvePeer](t, exchanged(a, b)) // while keys are being changed

	for name, c := range map[string]struct{ a, b func(*ResolverConfig) }{
		"other key":             {keyed("one"), keyed("two")},
		"missing at the asker":  {nil, keyed("two")},
		"missing at the asked":  {keyed("one"), nil},
		"not the asker's first": {keyed("one", "two"), keyed("two")},
	} {
		a, b = newResolver(1, c.a), newResolver(2, c.b)
		n := one[PeerNative](t, receive(a, portA, portB, answers(t, b, asks(t, a, t0), t0).Bytes, t0))
		require.Equal(t, negotiate.ReasonAuthFailed, n.Reason, name)
		require.True(t, n.Remote, name)
		require.Empty(t, b.peers, name)
		require.EqualValues(t, 1, b.Stats().RefusedPeers, name)
		require.Equal(t, []ResolverAction{PeerForgotten{Peer: addrB}}, a.SetKeys(negotiate.Keys{[]byte("three")}), name)
	}
}

// A recorded query is worth nothing: not without the cookie, not later, not from elsewhere, not with a recorded cookie.
func TestResolverReplayedQuery(t *testing.T) {
	keyed := func(c *ResolverConfig) { c.Keys = negotiate.Keys{testKey} }
	a, b := newResolver(1, keyed), newResolver(2, keyed)
	first := asks(t, a, t0)
	second := one[SendResolution](t, receive(a, portA, portB, answers(t, b, first, t0).Bytes, t0))
	refused := func(b *Resolver, from netip.AddrPort, q []byte, now time.Time) {
		t.Helper()
		r, err := ParseRefused(one[SendResolution](t, receive(b, portB, from, q, now)).Bytes)
		require.NoError(t, err)
		require.Equal(t, negotiate.ReasonAuthFailed, r.Reason)
	}
	refused(b, portA, first.Bytes, t0)
	require.NotEmpty(t, only[ExpectPeer](receive(b, portB, portA, second.Bytes, at(cookieInterval))), "in time")
	refused(b, portA, second.Bytes, at(2*cookieInterval))
	refused(b, netip.AddrPortFrom(netip.MustParseAddr("10.0.0.3"), defaultDatagramPort), second.Bytes, t0)
	other := newResolver(3, func(c *ResolverConfig) { keyed(c); c.Nonce = newResolver(9, nil).cfg.Nonce })
	refused(other, portA, second.Bytes, t0)
}

// The query goes out twice at most, whatever it is told.
func TestResolverCookieOnce(t *testing.T) {
	keyed := func(c *ResolverConfig) { c.Keys = negotiate.Keys{testKey} }
	a := newResolver(1, keyed)
	refuse := func(q SendResolution) []ResolverAction {
		parsed, err := parseResolve(q.Bytes)
		require.NoError(t, err)
		msg, _ := negotiate.Seal(encodeRefused(Refused{Nonce: parsed.Nonce, Reason: negotiate.ReasonAuthFailed, Cookie: Cookie{1}}), 0, testKey,
			negotiate.Chain{Binding: negotiate.Binding{Client: portA, Server: portB}, From: negotiate.FromServer, Prev: negotiate.MAC(q.Bytes[len(q.Bytes)-negotiate.MACLen:])})
		return receive(a, portA, portB, msg, t0)
	}
	again := one[SendResolution](t, refuse(asks(t, a, t0)))
	require.Empty(t, refuse(again))
	require.Equal(t, negotiate.ReasonPeerUnresolved, one[PeerNative](t, a.Tick(at(answerTimeout))).Reason, "not refused")
	// A refusal that is not authenticated is obeyed, and not believed.
	a = newResolver(1, keyed)
	parsed, err := parseResolve(asks(t, a, t0).Bytes)
	require.NoError(t, err)
	n := one[PeerNative](t, receive(a, portA, portB, encodeRefused(Refused{Nonce: parsed.Nonce, Reason: negotiate.ReasonPolicy}), t0))
	require.Equal(t, negotiate.ReasonAuthFailed, n.Reason)
}

// The network may bring a query twice, or what tells the cookie for it: both sides have the key.
func TestResolverCookieTwice(t *testing.T) {
	keyed := func(c *ResolverConfig) { c.Keys = negotiate.Keys{testKey} }
	for name, later := range map[string]time.Duration{"the same": 0, "another one": cookieInterval} {
		a, b := newResolver(1, keyed), newResolver(2, keyed)
		q := asks(t, a, t0)
		told := answers(t, b, q, t0)
		twice := answers(t, b, q, at(later))
		again := one[SendResolution](t, receive(a, portA, portB, told.Bytes, t0))
		require.Empty(t, receive(a, portA, portB, twice.Bytes, t0), name)
		one[ProvePeer](t, receive(a, portA, portB, answers(t, b, again, at(later)).Bytes, t0))
	}
}

func TestResolverMeetsItself(t *testing.T) {
	a := newResolver(1, nil)
	q := asks(t, a, t0)
	require.Empty(t, receive(a, portB, portA, q.Bytes, t0), "our own query")
	other := goldenResolved()
	parsed, err := parseResolve(q.Bytes)
	require.NoError(t, err)
	other.Nonce, other.GatewayID = parsed.Nonce, [16]byte{1}
	n := one[PeerNative](t, receive(a, portA, portB, appendResolved(nil, &other), t0))
	require.Equal(t, negotiate.ReasonAddress, n.Reason)
}

func TestResolverProofFails(t *testing.T) {
	a, b := newResolver(1, nil), newResolver(2, nil)
	receive(a, portA, portB, answers(t, b, asks(t, a, t0), t0).Bytes, t0)
	now := t0
	for i := 2; i <= probeTries; i++ {
		now = now.Add(probeInterval)
		require.Equal(t, now, a.Deadline())
		require.Equal(t, i, one[ProvePeer](t, a.Tick(now)).Attempt)
	}
	now = now.Add(probeInterval)
	todo := a.Tick(now)
	require.Equal(t, []ResolverAction{
		PeerGone{Peer: addrB}, PeerNative{Peer: addrB, Reason: negotiate.ReasonCarrierUnreachable, TTL: 5 * time.Second},
	}, todo)
	require.Equal(t, PeerStateResolved, stateOf(a))
	one[PeerNative](t, a.Want(addrA, addrB, true, now.Add(4*time.Second)))
	// After the pause it is tried again, with what is known; the next pause is longer.
	pr := one[ProvePeer](t, a.Want(addrA, addrB, true, now.Add(5*time.Second)))
	todo = a.Proved(addrB, pr.Proof, false, now.Add(5*time.Second))
	require.Equal(t, 10*time.Second, only[PeerNative](todo)[0].TTL)
	// A success forgets that.
	pr = one[ProvePeer](t, a.Want(addrA, addrB, true, now.Add(2*time.Minute)))
	one[PeerCapable](t, a.Proved(addrB, pr.Proof, true, now.Add(2*time.Minute)))
	todo = a.Hangup(addrB, now.Add(3*time.Minute))
	require.Equal(t, negotiate.ReasonPeerDead, only[PeerNative](todo)[0].Reason)
	require.Equal(t, ResolverStats{Queries: 1, Answers: 1, Proven: 1, Unreachable: 2, Suspended: 1}, a.Stats())
}

func TestResolverLiveness(t *testing.T) {
	a, b := newResolver(1, nil), newResolver(2, nil)
	proven(t, a, b, t0)
	// Nothing sent: nothing is missed.
	require.Empty(t, a.Tick(at(time.Minute)))
	now := at(time.Minute)
	sent := now
	// Silence, and an echo after the second probe.
	a.Traffic(addrB, sent, t0, now)
	require.Equal(t, now.Add(probeInterval), a.Deadline())
	for range 2 {
		now = now.Add(probeInterval)
		require.Equal(t, []ResolverAction{ProbePeer{Peer: addrB}}, a.Tick(now))
	}
	a.Traffic(addrB, sent, now, now)
	require.Empty(t, a.Tick(now.Add(time.Minute)))
	// A peer that answers is never probed.
	now = at(3 * time.Minute)
	for i := range 100 {
		now = now.Add(50 * time.Millisecond)
		heard := now.Add(-time.Millisecond)
		a.Traffic(addrB, now, heard, now)
		require.Empty(t, a.Tick(now), i)
	}
	// Three without an echo: suspended.
	a.Traffic(addrB, now.Add(time.Millisecond), now, now.Add(time.Millisecond))
	probes := 0
	for stateOf(a) == PeerStateProven {
		now = a.Deadline()
		todo := a.Tick(now)
		probes += len(only[ProbePeer](todo))
		if stateOf(a) == PeerStateSuspended {
			require.Equal(t, []ResolverAction{PeerGone{Peer: addrB}, PeerNative{Peer: addrB, Reason: negotiate.ReasonPeerDead, TTL: minNative}}, todo)
		}
	}
	require.Equal(t, probeTries, probes)
	// It is wanted again, and answers.
	q := one[SendResolution](t, a.Want(addrA, addrB, true, now.Add(time.Second)))
	one[ProvePeer](t, receive(a, portA, portB, answers(t, b, q, now).Bytes, now.Add(time.Second)))
}

func TestResolverPeerRestarts(t *testing.T) {
	a, b := newResolver(1, nil), newResolver(2, nil)
	proven(t, a, b, t0)
	reborn := newResolver(3, func(c *ResolverConfig) { // with the same numbers, which means nothing
		c.Offers = func(local, _ netip.Addr) []UDOffer { return []UDOffer{softOffer(local, 2)} }
	})
	now := at(time.Minute)
	q := one[SendResolution](t, reborn.Want(addrB, addrA, true, now))
	todo := receive(a, portA, portB, q.Bytes, now)
	require.Len(t, only[ExpectPeer](todo), 1)
	require.Len(t, only[ProbePeer](todo), 1, "the old one may still live")
	require.Empty(t, only[PeerGone](todo), "a message alone ends nothing")
	sent := only[SendResolution](todo)
	require.Len(t, sent, 2, "answer and question")
	require.Equal(t, PeerStateProven, stateOf(a))
	ans := only[SendResolution](receive(reborn, portB, portA, sent[1].Bytes, now))[0]
	todo = receive(a, portA, portB, ans.Bytes, now)
	require.Equal(t, PeerGone{Peer: addrB}, todo[0])
	require.Equal(t, [16]byte{3}, todo[1].(ProvePeer).GatewayID)
	require.Len(t, todo, 2)
}

func TestResolverRenews(t *testing.T) {
	a, b := newResolver(1, nil), newResolver(2, nil)
	proven(t, a, b, t0)
	a.Traffic(addrB, at(time.Minute), at(time.Minute), at(time.Minute))
	require.Equal(t, at(answerTTL/2), a.Deadline())
	now := at(answerTTL / 2)
	q := one[SendResolution](t, a.Tick(now))
	require.Equal(t, PeerStateProven, stateOf(a))
	capable := one[PeerCapable](t, receive(a, portA, portB, answers(t, b, q, now).Bytes, now))
	require.Equal(t, answerTTL, capable.TTL, "without a new proof")
	// A renewal that is refused ends it.
	a.Traffic(addrB, now.Add(time.Minute), now.Add(time.Minute), now.Add(time.Minute))
	now = a.Deadline()
	q = one[SendResolution](t, a.Tick(now))
	no := newResolver(2, func(c *ResolverConfig) {
		c.Admit = func(_, _ netip.Addr) negotiate.Reason { return negotiate.ReasonPolicy }
	})
	todo := receive(a, portA, portB, answers(t, no, q, now).Bytes, now)
	require.Equal(t, PeerGone{Peer: addrB}, todo[0])
	require.Equal(t, negotiate.ReasonPolicy, todo[1].(PeerNative).Reason)

	// Without an answer it is asked every minute, and ends with the answer's time.
	a = newResolver(1, nil)
	proven(t, a, newResolver(2, nil), t0)
	var queries int
	for d := time.Second; stateOf(a) == PeerStateProven; d += time.Second {
		a.Traffic(addrB, at(d), at(d), at(d))
		queries += len(only[SendResolution](a.Tick(at(d))))
		require.LessOrEqual(t, d, answerTTL)
	}
	require.Equal(t, 5, queries)

	// It is not used: it is not renewed, and forgotten.
	a = newResolver(1, nil)
	proven(t, a, newResolver(2, nil), t0)
	require.Equal(t, at(answerTTL), a.Deadline())
	require.Len(t, a.Tick(at(answerTTL)), 2)
	for len(a.peers) > 0 {
		require.True(t, a.Deadline().Before(at(3*time.Hour)))
		require.Empty(t, a.Tick(a.Deadline()))
	}
	require.True(t, a.Deadline().IsZero())
}

// A program that sends when the answer has just ended, before the end is noted, makes the peer capable for a moment, not
// for ever.
func TestResolverCapableAtTheEndOfItsAnswer(t *testing.T) {
	a := newResolver(1, nil)
	proven(t, a, newResolver(2, nil), t0)
	for _, late := range []time.Duration{0, time.Millisecond} {
		capable := one[PeerCapable](t, a.Want(addrA, addrB, true, at(answerTTL+late)))
		require.Equal(t, minNative, capable.TTL)
	}
	require.Equal(t, PeerGone{Peer: addrB}, a.Tick(at(answerTTL))[0])
}

func TestResolverOtherQueuePair(t *testing.T) {
	a := newResolver(1, nil)
	qpn := uint32(2)
	b := newResolver(2, func(c *ResolverConfig) {
		c.Offers = func(local, _ netip.Addr) []UDOffer { return []UDOffer{softOffer(local, qpn)} }
	})
	proven(t, a, b, t0)
	a.Traffic(addrB, at(1), at(1), at(1))
	qpn = 77 // the device was opened again
	now := at(answerTTL / 2)
	todo := receive(a, portA, portB, answers(t, b, one[SendResolution](t, a.Tick(now)), now).Bytes, now)
	require.Equal(t, PeerGone{Peer: addrB}, todo[0])
	require.Equal(t, softOffer(addrB, 77), todo[1].(ProvePeer).Offer)
}

func TestResolverWithoutADevice(t *testing.T) {
	none := true
	a := newResolver(1, func(c *ResolverConfig) {
		offers := c.Offers
		c.Offers = func(local, peer netip.Addr) []UDOffer {
			if none {
				return nil
			}
			return offers(local, peer)
		}
	})
	require.Empty(t, a.Want(addrA, addrB, true, t0), "it is looked for")
	require.Empty(t, a.Want(addrA, addrB, true, at(time.Millisecond)), "still")
	n := one[PeerNative](t, a.Offered(addrB, at(2*time.Millisecond)))
	require.Equal(t, PeerNative{Peer: addrB, Reason: negotiate.ReasonPeerUnresolved, TTL: offersAgain}, n)
	none = false
	one[PeerNative](t, a.Want(addrA, addrB, true, at(time.Second)))
	one[SendResolution](t, a.Want(addrA, addrB, true, at(2*time.Millisecond+offersAgain)))
	require.EqualValues(t, 1, a.Stats().Queries)
}

// Offers can take memory: none are looked for unless a query is to name them, and a query waits for them.
func TestResolverWaitsForOffers(t *testing.T) {
	looks, known := 0, false
	a := newResolver(1, func(c *ResolverConfig) {
		offers := c.Offers
		c.Offers = func(local, peer netip.Addr) []UDOffer {
			if !known {
				looks++
				return nil
			}
			return offers(local, peer)
		}
	})
	b := newResolver(2, nil)
	one[PeerNative](t, a.Want(addrA, addrB, false, t0))
	require.Empty(t, a.Offered(addrB, t0), "no query waits")
	require.Zero(t, looks, "the host may not be asked")
	require.Empty(t, a.Want(addrA, addrB, true, at(queryInterval)))
	require.Equal(t, 1, looks)
	known = true
	q := one[SendResolution](t, a.Offered(addrB, at(queryInterval)))
	require.Empty(t, a.Offered(addrB, at(queryInterval)), "it is under way")
	pr := one[ProvePeer](t, receive(a, portA, portB, answers(t, b, q, at(queryInterval)).Bytes, at(queryInterval)))
	now := at(queryInterval)
	a.Proved(addrB, pr.Proof, true, now)
	a.Traffic(addrB, now.Add(1), now.Add(1), now.Add(1))

	known = false // when the answer is renewed
	now = now.Add(answerTTL / 2)
	require.Empty(t, a.Tick(now))
	require.Empty(t, a.Offered(addrB, now), "the peer stays capable")
	require.Equal(t, now.Add(offersAgain), a.Deadline())
	now = a.Deadline()
	require.Empty(t, a.Tick(now))
	known = true
	one[SendResolution](t, a.Offered(addrB, now))
	require.Equal(t, PeerStateProven, stateOf(a))
}

func TestResolverTableIsBounded(t *testing.T) {
	a := newResolver(1, func(c *ResolverConfig) { c.MaxPeers = 3 })
	peer := func(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 1, 0, byte(i)}) }
	for i := range 3 {
		require.Len(t, only[SendResolution](a.Want(addrA, peer(i), true, at(time.Duration(i)*time.Second))), 1)
	}
	n := one[PeerNative](t, a.Want(addrA, peer(3), true, at(10*time.Second)))
	require.Equal(t, negotiate.ReasonFlowLimit, n.Reason, "forgetting one would break the limit of its queries")
	require.EqualValues(t, 1, a.Stats().Overflow)
	a.Tick(at(10 * time.Second))
	a.Tick(at(20 * time.Second))
	require.Len(t, only[SendResolution](a.Want(addrA, peer(3), true, at(70*time.Second))), 1, "the oldest was forgotten")
	require.Len(t, a.peers, 3)
}

func TestResolverLimitsAnswers(t *testing.T) {
	b := newResolver(2, nil)
	q := goldenResolve()
	q.Target = portB
	msg := AppendResolve(nil, &q)
	sent := 0
	for range 100 {
		sent += len(only[SendResolution](receive(b, portB, portA, msg, t0)))
	}
	require.Equal(t, 5*answersPerSource+1, sent, "and one question back")
	require.EqualValues(t, 90, b.Stats().Limited)
	// Many sources together.
	sent = 0
	for i := range 5000 {
		from := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 2, byte(i >> 8), byte(i)}), 4790)
		sent += len(receive(b, portB, from, msg, at(time.Hour)))
	}
	require.LessOrEqual(t, b.Stats().Answered, uint64(2*answersPerSecond+10))
	require.LessOrEqual(t, len(b.peers), 2*answersPerSecond+10)
	require.Positive(t, sent)
}

func TestResolverStrangersHaveHalfOfTheTable(t *testing.T) {
	b := newResolver(2, func(c *ResolverConfig) { c.MaxPeers = 8 })
	q := goldenResolve()
	q.Target = portB
	msg := AppendResolve(nil, &q)
	for i := range 20 {
		from := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 2, 0, byte(i)}), 4790)
		require.NotEmpty(t, receive(b, portB, from, msg, at(time.Duration(i)*time.Second)), "all are answered")
	}
	require.Len(t, b.peers, 4)
	for i := range 4 {
		peer := netip.AddrFrom4([4]byte{10, 3, 0, byte(i)})
		require.Len(t, only[SendResolution](b.Want(addrB, peer, true, at(20*time.Second))), 1)
	}
	require.Len(t, b.peers, 8)
}

// A query from a port that is not its host's for this purpose has no effect: any user of the host may have sent it, or
// another host, to have us send something to a program there.
func TestResolverForgedPort(t *testing.T) {
	a := newResolver(1, nil)
	q := goldenResolve()
	q.Target, q.GatewayID = portA, [16]byte{9}
	require.Empty(t, receive(a, portA, netip.AddrPortFrom(addrB, 53), AppendResolve(nil, &q), t0))
	require.Empty(t, a.peers)
	require.EqualValues(t, 1, a.Stats().Ignored)
	// A port that the gateway has told of in a CLC message is good, and stays so.
	other := netip.AddrPortFrom(addrB, 999)
	b := newResolver(2, func(c *ResolverConfig) { c.Port = 999 })
	require.Empty(t, a.News(addrA, other, [16]byte{2}, t0))
	back := only[SendResolution](receive(a, portA, other, one[SendResolution](t, b.Want(addrB, addrA, true, t0)).Bytes, t0))[1]
	ans := only[SendResolution](receive(b, other, portA, back.Bytes, t0))[0]
	pr := one[ProvePeer](t, receive(a, portA, other, ans.Bytes, t0))
	a.Proved(addrB, pr.Proof, true, t0)
	a.Hangup(addrB, at(time.Second))
	require.Equal(t, other, only[SendResolution](a.Want(addrA, addrB, true, at(2*queryInterval)))[0].To)
}

func TestAnswerLimitOfSources(t *testing.T) {
	l := newAnswerLimit([16]byte{1, 2, 3, 4, 5, 6, 7, 8, 9})
	now := t0
	v6 := func(s string) netip.Addr { return netip.MustParseAddr(s) }
	for range 5 * answersPerSource {
		require.True(t, l.allow(v6("fd00::1"), now))
	}
	require.False(t, l.allow(v6("fd00::2"), now), "the same /64")
	require.True(t, l.allow(v6("fd00::2"), now.Add(time.Second/answersPerSource)))
	require.False(t, l.allow(v6("fd00::2"), now.Add(time.Second/answersPerSource)))
	require.True(t, l.allow(v6("fd00::2"), now.Add(time.Hour)))
}

// TestResolverOfTwoAddresses: an answer is about the address that has asked. The peer expects
// a proof from no other one.
func TestResolverOfTwoAddresses(t *testing.T) {
	other := netip.MustParseAddr("10.0.0.7")
	a, b := newResolver(1, nil), newResolver(2, nil)
	q := asks(t, a, t0)
	require.Empty(t, a.Want(other, addrB, true, t0), "under way")
	pr := one[ProvePeer](t, receive(a, portA, portB, answers(t, b, q, t0).Bytes, t0))
	require.Equal(t, addrA, pr.Local)

	require.Empty(t, only[ProvePeer](a.Proved(addrB, pr.Proof, false, t0)), "lost")
	later := t0.Add(freshInterval)
	require.Empty(t, only[ProvePeer](a.Want(other, addrB, true, later)), "by the offers to the first address")
}

// TestResolverAskedBackWhileProving: a peer that asks back meanwhile changes nothing of a proof
// that fails: it is repeated as soon.
func TestResolverAskedBackWhileProving(t *testing.T) {
	for _, back := range []bool{false, true} {
		a, b := newResolver(1, nil), newResolver(2, nil)
		sent := only[SendResolution](receive(b, portB, portA, asks(t, a, t0).Bytes, t0))
		require.Len(t, sent, 2, "answer and question")
		pr := one[ProvePeer](t, receive(a, portA, portB, sent[0].Bytes, t0))
		if back {
			receive(a, portA, portB, sent[1].Bytes, t0)
		}
		a.Proved(addrB, pr.Proof, false, t0)
		one[ProvePeer](t, a.Want(addrA, addrB, true, t0.Add(freshInterval)))
		require.Equal(t, PeerStateProving, stateOf(a), "asked back: %v", back)
	}
}
