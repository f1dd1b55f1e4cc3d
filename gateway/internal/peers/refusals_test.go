package peers

import (
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/negotiate"
)

func TestTableIsBounded(t *testing.T) {
	b := testTable()
	policy := negotiate.CachePolicy{}
	now := time.Unix(1000, 0)
	addr := func(i int) netip.Addr {
		return netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})
	}
	for i := range 2*limit + 10 {
		b.Strike(addr(i), 80, negotiate.ReasonAppRefused, policy, now)
		b.Proven(addr(i), report.CarrierShm)
		require.LessOrEqual(t, b.strikes, limit)
		require.LessOrEqual(t, len(b.peers), limit)
	}
	for i := 0; b.strikes < limit; i++ {
		b.Strike(addr(i%100), uint16(i/100), negotiate.ReasonAppRefused, policy, now)
	}
	late := now.Add(time.Hour) // all are without effect: they make room first
	b.Strike(addr(1), 81, negotiate.ReasonAppRefused, policy, late)
	require.Equal(t, 1, b.strikes)
}

// What is remembered of peers with connections goes last, and the connections still count.
func TestPeersThatHoldConnectionsStay(t *testing.T) {
	b, now := testTable(), time.Unix(1000, 0)
	var s Share
	s.Begin(b, peerA, now)
	b.Unreachable(peerA, now, time.Hour)
	for i := range 2 * limit {
		b.Unreachable(netip.AddrFrom4([4]byte{11, byte(i >> 16), byte(i >> 8), byte(i)}), now, time.Hour)
		require.LessOrEqual(t, len(b.peers), limit+1)
	}
	require.True(t, b.Elsewhere(peerA, now))
	require.Equal(t, map[netip.Addr]Holds{peerA: {Flows: 1, Handshakes: 1}}, b.Use())
	s.End()
	require.Zero(t, b.holding)
	require.Empty(t, b.Use())
}

// An address of which nothing is known any more is forgotten.
func TestPeersAreForgotten(t *testing.T) {
	b, now := testTable(), time.Unix(1000, 0)
	b.Unreachable(peerA, now, time.Minute)
	require.True(t, b.Elsewhere(peerA, now.Add(59*time.Second)))
	require.False(t, b.Elsewhere(peerA, now.Add(time.Minute)))
	b.Failed(peerA, negotiate.CarrierSoft, now)
	b.Unreachable(peerB, now.Add(24*time.Hour), time.Minute)
	require.Len(t, b.peers, 1)
}

// What a later connection shows to be wrong is forgotten, and its row with it.
func TestContradicted(t *testing.T) {
	b := testTable()
	a, other := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")
	policy := negotiate.CachePolicy{}
	now := time.Unix(1000, 0)
	strike := func() {
		b.Strike(a, 0, negotiate.ReasonAcceptLost, policy, now)
		b.Strike(a, 80, negotiate.ReasonHandshakeTimeout, policy, now)
		b.Strike(a, 81, negotiate.ReasonAppRefused, policy, now)
		b.Strike(other, 80, negotiate.ReasonHandshakeTimeout, policy, now)
	}
	strike()
	require.Empty(t, b.Contradicted(a, 80, now.Add(-time.Second), policy), "it began before")
	later := now.Add(time.Second)
	require.ElementsMatch(t, []uint16{0, 80}, b.Contradicted(a, 0, later, policy), "of the gateway and the way to it")
	require.Empty(t, b.Contradicted(a, 0, later, policy))
	require.Equal(t, []uint16{81}, b.Contradicted(a, 81, later, policy))
	require.Equal(t, 1, b.strikes)
	strike()
	require.Equal(t, []uint16{0}, b.Contradicted(a, 0, now.Add(10*time.Second), policy), "what is over by then needs not be told")
	b.Flush()
	require.Zero(t, b.strikes)
}

// Memory that was shared, or the operator, ends what is believed of a peer's kernel.
func TestElsewhereEnds(t *testing.T) {
	b, now := testTable(), time.Unix(1000, 0)
	for name, end := range map[string]func(){"reached": func() { b.Reached(peerA) }, "flush": b.Flush} {
		b.Unreachable(peerA, now, time.Minute)
		b.Unreachable(peerB, now, time.Minute)
		require.True(t, b.Elsewhere(peerA, now))
		end()
		require.False(t, b.Elsewhere(peerA, now), name)
		require.Equal(t, name == "reached", b.Elsewhere(peerB, now), name)
	}
}

// TestApart: the longest time counts, and it is forgotten as all else.
func TestApart(t *testing.T) {
	now := time.Now()
	a := netip.MustParseAddr("10.0.0.1")
	table := NewTable(config.Limits{})
	require.False(t, table.Apart(a, now))
	table.Part(a, now, time.Hour)
	table.Part(a, now, time.Minute)
	require.True(t, table.Apart(a, now.Add(time.Hour-1)))
	require.False(t, table.Apart(a, now.Add(time.Hour)))
	table.mu.Lock()
	table.expireLocked(now.Add(time.Minute))
	require.Len(t, table.peers, 1, "something is known of it")
	table.expireLocked(now.Add(time.Hour))
	require.Empty(t, table.peers)
	table.mu.Unlock()
	table.Part(a, now, time.Hour)
	table.Flush()
	require.False(t, table.Apart(a, now))
}

// TestCarriersThatRest: what has failed too often with a peer is told for as long as it is
// left alone, also of a peer with which nothing was proven.
func TestCarriersThatRest(t *testing.T) {
	b, now := testTable(), time.Unix(1000, 0)
	b.Proven(peerA, report.CarrierShm)
	for range 3 {
		require.Empty(t, b.Known(now)[peerA].Failed, "it is tried again")
		require.NotContains(t, b.Known(now), peerB)
		now = now.Add(10 * time.Second)
		for _, kind := range []negotiate.CarrierKind{negotiate.CarrierSoft, negotiate.CarrierHW} {
			b.Failed(peerA, kind, now)
		}
		b.Failed(peerB, negotiate.CarrierSoft, now)
	}
	soft := []report.Carrier{report.CarrierSoft}
	require.Equal(t, map[netip.Addr]Known{
		peerA: {Proven: []report.Carrier{report.CarrierShm}, Failed: []report.Carrier{report.CarrierHW, report.CarrierSoft}}, peerB: {Failed: soft},
	}, b.Known(now))
	for b.Resting(peerB, negotiate.CarrierSoft, now) {
		now = now.Add(time.Second)
	}
	require.NotContains(t, b.Known(now), peerB)
}

// TestGatewayOfPeer: a handshake tells the version of a peer's gateway, and that it enforces; a refusal may tell another mode.
func TestGatewayOfPeer(t *testing.T) {
	b, now := NewTable(config.Limits{}), time.Now()
	b.Declined(peerA, negotiate.ReasonOff)
	require.Empty(t, b.Known(now), "nothing was heard of it")
	b.Met(peerA, "0.1.0+hw")
	require.Equal(t, Known{Software: "0.1.0+hw", Mode: report.ModeEnforce}, b.Known(now)[peerA])
	for reason, mode := range map[negotiate.Reason]report.Mode{
		negotiate.ReasonOff: report.ModeOff, negotiate.ReasonMode: report.ModeObserve, negotiate.ReasonNoMemory: report.ModeEnforce,
	} {
		b.Met(peerA, "0.2.0")
		b.Declined(peerA, reason)
		require.Equal(t, Known{Software: "0.2.0", Mode: mode}, b.Known(now)[peerA], reason)
	}
}
