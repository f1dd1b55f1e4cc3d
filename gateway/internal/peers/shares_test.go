package peers

import (
	"net/netip"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/negotiate"
)

func testTable() *Table {
	return NewTable(config.Limits{MaxFlows: 20, NewFlowsPerSecond: 10, PeerShare: 50 * 100})
}

var (
	peerA = netip.MustParseAddr("10.0.0.1")
	peerB = netip.MustParseAddr("fd00::1")
)

// begin makes a connection that a peer has begun.
func (t *Table) begin(a netip.Addr, now time.Time) *Share {
	c := new(Share)
	c.Begin(t, a, now)
	return c
}

// Handshakes that are left open are bounded before flows are.
func TestShareOfHandshakes(t *testing.T) {
	s, now := NewTable(config.Limits{MaxFlows: 1 << 20, NewFlowsPerSecond: 10, PeerShare: 50 * 100}), time.Now()
	for range HandshakeLimit / 2 {
		s.begin(peerA, now)
	}
	require.Equal(t, negotiate.ReasonNone, s.Admit(peerA, false, now))
	last := s.begin(peerA, now)
	require.Equal(t, negotiate.ReasonRateLimit, s.Admit(peerA, false, now))
	last.Carried()
	require.Equal(t, negotiate.ReasonNone, s.Admit(peerA, false, now))
	require.Equal(t, uint64(1), s.refused[ResourceHandshakes])
}

// What is declined takes nothing of what others want, and has bounds of its own.
func TestDeclines(t *testing.T) {
	s, now := testTable(), time.Now()
	var all []*Share
	for i := range declinesOfOne {
		all = append(all, s.begin(peerA, now))
		require.True(t, all[i].decline())
	}
	require.Empty(t, s.Use())
	require.Zero(t, s.inHandshake())
	require.Equal(t, declinesOfOne, s.declined())
	over := s.begin(peerA, now)
	require.False(t, over.decline())
	require.True(t, over.decline(), "it counts for nothing any more")
	over.Carried()
	require.Empty(t, s.Use())
	for i := range declineLimit - declinesOfOne {
		all = append(all, s.begin(netip.AddrFrom4([4]byte{10, 1, 0, byte(i % 32)}), now))
		require.True(t, all[len(all)-1].decline())
	}
	require.False(t, s.begin(peerB, now).decline())
	all[0].Carried()
	require.Equal(t, declineLimit, s.declined(), "what is declined is not carried")
	all[0].End()
	require.True(t, s.begin(peerB, now).decline())
	require.True(t, new(Share).decline(), "it counts for no peer")
	s.mu.Lock()
	s.expireLocked(now.Add(time.Hour))
	s.mu.Unlock()
	for _, c := range all {
		c.End()
	}
	require.Equal(t, 1, s.declined())
	require.Equal(t, 1, s.holding)
}

// The rate is a peer's alone for as long as no other peer has to do with less.
func TestShareOfRate(t *testing.T) {
	s, now := testTable(), time.Now()
	s.begin(peerA, now)
	s.begin(peerB, now)
	for range 100 {
		require.Equal(t, negotiate.ReasonNone, s.Admit(peerA, false, now))
	}
	for range 5 {
		require.Equal(t, negotiate.ReasonNone, s.Admit(peerA, true, now))
	}
	require.Equal(t, negotiate.ReasonRateLimit, s.Admit(peerA, true, now))
	require.Equal(t, negotiate.ReasonNone, s.Admit(peerB, true, now))
	require.Equal(t, negotiate.ReasonNone, s.Admit(peerA, true, now.Add(time.Second/5)))
	require.Equal(t, uint64(1), s.refused[ResourceRate])
}

// What a connection counts for changes together with what its peer holds: an end that
// meets the begin of the carrying cannot pass it in between.
func TestCarriedMeetsEnd(t *testing.T) {
	s := testTable()
	c := s.begin(peerA, time.Now())
	s.mu.Lock()
	var both sync.WaitGroup
	both.Go(func() { c.Carried() })
	both.Go(func() { c.End() })
	for range 10_000 { // both come as far as they can
		runtime.Gosched()
	}
	held := c.held
	s.mu.Unlock()
	both.Wait()
	require.Equal(t, holdsHandshake, held)
	require.Empty(t, s.Use())
	require.Zero(t, s.inHandshake())
}

// Whichever peers come and go, the shares are those of the flows in the table,
// and no peer is remembered for ever.
func TestSharesModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		type conn struct {
			share Share
			peer  netip.Addr
			begun bool // by the peer
		}
		s := NewTable(config.Limits{MaxFlows: 100, NewFlowsPerSecond: 10, PeerShare: 50 * 100})
		now := time.Unix(1000, 0)
		var live []*conn
		states := map[*conn]bool{} // carried
		pick := func(t *rapid.T) *conn {
			if len(live) == 0 {
				t.Skip("no flow")
			}
			return rapid.SampledFrom(live).Draw(t, "flow")
		}
		t.Repeat(map[string]func(*rapid.T){
			"begin": func(t *rapid.T) {
				a := netip.AddrFrom4([4]byte{10, 0, 0, byte(rapid.IntRange(1, 5).Draw(t, "peer"))})
				f := &conn{peer: a, begun: rapid.Bool().Draw(t, "begun")}
				if f.begun {
					f.share.Begin(s, f.peer, now)
				}
				live = append(live, f)
			},
			"carried": func(t *rapid.T) {
				f := pick(t)
				f.share.Carried()
				states[f] = true
			},
			"end": func(t *rapid.T) {
				f := pick(t)
				for range rapid.IntRange(1, 2).Draw(t, "times") {
					f.share.End()
				}
				f.share.Carried() // too late
				for i := range live {
					if live[i] == f {
						live = append(live[:i], live[i+1:]...)
						break
					}
				}
			},
			"pass": func(*rapid.T) { now = now.Add(700 * time.Millisecond) },
			"": func(t *rapid.T) {
				want := map[netip.Addr]Holds{}
				for _, f := range live {
					if !f.begun {
						continue
					}
					u := want[f.peer]
					u.Flows++
					if !states[f] {
						u.Handshakes++
					}
					want[f.peer] = u
				}
				require.Equal(t, want, s.Use())
			},
		})
		for _, f := range live {
			f.share.End()
		}
		s.begin(peerB, now.Add(time.Hour))
		require.Len(t, s.peers, 1)
	})
}
