package peers

import (
	"errors"
	"log/slog"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/time/rate"

	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/lab/leak"
	"github.com/smcgw/smcgw/negotiate"
)

var remote = netip.MustParseAddr("10.0.0.1")

// limits are those of a gateway with so many flows, one tenth of which a peer may begin.
func limits(perSecond, flows int) *Limits {
	return &Limits{
		Max: func() int { return 20 }, Flows: func() int { return flows },
		Rate: rate.NewLimiter(rate.Limit(perSecond), perSecond), Note: func() {},
		Peers: NewTable(config.Limits{MaxFlows: 20, NewFlowsPerSecond: perSecond, PeerShare: 10 * 100}),
	}
}

// The flow that Admit decides about is in the table: the last one that fits is let in, and
// Lacking says beforehand that there is room for no other.
func TestFlowLimit(t *testing.T) {
	for _, side := range []report.Side{report.SideClient, report.SideServer} {
		require.Equal(t, negotiate.ReasonNone, limits(10, 20).lacks(side, remote))
		require.Equal(t, negotiate.ReasonFlowLimit, limits(10, 21).lacks(side, remote))
	}
	require.Equal(t, negotiate.ReasonNone, limits(10, 19).Lacking())
	require.Equal(t, negotiate.ReasonFlowLimit, limits(10, 20).Lacking())
}

// Handshakes without an end leave no room for others.
func TestHandshakeLimit(t *testing.T) {
	l := limits(10, 0)
	shares := make([]Share, HandshakeLimit)
	for i := range shares {
		require.Equal(t, negotiate.ReasonNone, l.Lacking())
		shares[i].Begin(l.Peers, remote, time.Now())
	}
	require.Equal(t, negotiate.ReasonRateLimit, l.Lacking())
	shares[0].End()
	require.Equal(t, negotiate.ReasonNone, l.Lacking())
}

// One address that is refused again and again leaves room for the others.
func TestRefusedTakeNoRoom(t *testing.T) {
	n := 0
	l := limits(HandshakeLimit, 0)
	l.Flows = func() int { return n }
	admitted, heard := 0, 0
	shares := make([]Share, HandshakeLimit)
	for i := range shares {
		shares[i].Begin(l.Peers, remote, time.Now())
		n++
		switch shed, declines := l.Admit(report.SideServer, remote, &shares[i]); {
		case shed == negotiate.ReasonNone:
			admitted++
		case declines:
			heard++
		default:
			n--
		}
		require.Equal(t, negotiate.ReasonNone, l.Lacking())
	}
	require.Equal(t, 2, admitted)
	require.Equal(t, heard, l.Peers.declined())
	require.Less(t, heard, HandshakeLimit/8)
	for i := range shares {
		shares[i].End()
	}
	require.Zero(t, l.Peers.declined())
}

// What this host begins and what peers begin have one rate. What a peer may take of it is
// bounded when it is scarce.
func TestRate(t *testing.T) {
	const burst = 40
	l := limits(burst, 0)
	l.Rate.SetLimit(0) // nothing comes back while the test runs
	for range burst {
		require.Equal(t, negotiate.ReasonNone, l.lacks(report.SideClient, remote))
	}
	require.Equal(t, negotiate.ReasonRateLimit, l.lacks(report.SideClient, remote))

	l = limits(burst, 0)
	l.Rate.SetLimit(0)
	var share Share
	share.Begin(l.Peers, remote, time.Now())
	admitted := 0
	for range burst {
		if l.lacks(report.SideServer, remote) == negotiate.ReasonNone {
			admitted++
		}
	}
	require.Less(t, admitted, burst)
	require.Positive(t, l.Peers.Refusals()[ResourceRate])
	require.Equal(t, negotiate.ReasonNone, l.lacks(report.SideClient, remote), "the peer left the rest to others")
}

// The programs learn each change of the room once, also by many at a time, and what they
// refused to take they are told again.
func TestRoom(t *testing.T) {
	var lacking atomic.Uint32
	var told []uint8 // under the lock of the room
	var refused error
	r := Room{
		Lacking: func() negotiate.Reason { return negotiate.Reason(lacking.Load()) }, Log: slog.New(slog.DiscardHandler),
		Tell: func(reason uint8) error {
			told = append(told, reason)
			return refused
		},
	}
	full := negotiate.ReasonFlowLimit
	r.Note()
	require.Empty(t, told)
	lacking.Store(uint32(full))
	var all sync.WaitGroup
	for range 8 {
		all.Go(r.Note)
	}
	all.Wait()
	require.Equal(t, []uint8{uint8(full)}, told)
	refused = errors.New("map")
	lacking.Store(0)
	r.Note()
	refused = nil
	r.Note()
	r.Note()
	require.Equal(t, []uint8{uint8(full), 0, 0}, told)
}

// An end outweighs missing sockets, and is not forgotten when they come back.
func TestRefusals(t *testing.T) {
	var told []negotiate.Reason
	r := Refusals{Tell: func(reason uint8) error {
		told = append(told, negotiate.Reason(reason))
		return nil
	}}
	for _, change := range []func(*Refusal){
		func(now *Refusal) { now.Legless = true },
		func(now *Refusal) { now.Drained = true },
		func(now *Refusal) { now.Legless = false },
		func(now *Refusal) { now.Drained = false },
	} {
		require.NoError(t, r.Change(change))
	}
	require.Equal(t, []negotiate.Reason{negotiate.ReasonAppLegBlocked, negotiate.ReasonDrained, negotiate.ReasonDrained, negotiate.ReasonNone}, told)
}

// TestMain fails the run if a test left a goroutine or a descriptor behind.
func TestMain(m *testing.M) { os.Exit(leak.Main(m)) }
