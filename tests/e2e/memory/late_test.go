package memory

import (
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/admin"
	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/lab/memhost"
	"github.com/smcgw/smcgw/netstack"
	"github.com/smcgw/smcgw/packet"
)

// dialling connects to h2 in the background; nil: it failed, and the log says why.
func (w *world) dialling(t *testing.T, to netip.Addr) <-chan *netstack.HostConn {
	t.Helper()
	done := make(chan *netstack.HostConn, 1)
	var dial sync.WaitGroup
	t.Cleanup(dial.Wait)
	dial.Go(func() {
		c, err := w.tryDial(t, to, echoPort)
		if err != nil {
			t.Log(err)
		}
		done <- c
	})
	return done
}

// connects is how long a connect() may take that a gateway was in the way of.
const connects = 10 * time.Second

// TestGatewayLateAfterItSpoke: the client's gateway has said its PROPOSAL, and is then
// late. The application's kernel goes on without it, and never with what the server's
// gateway repeats, its ACCEPT: that is the other end of what its own gateway has said.
func TestGatewayLateAfterItSpoke(t *testing.T) {
	w := newWorld(t)
	w.g1 = w.up(w.h1, forgetful, func(c *memhost.GatewayConfig) { c.HeartbeatTimeout = 600 * time.Millisecond })
	w.g2 = w.up(w.h2, forgetful)
	w.h2.SetFaults(memhost.Faults{Delay: 50 * time.Millisecond}) // its ACCEPT comes to a gateway that is late
	for try := 0; !w.lateAfterItSpoke(t, w.h2.Addr4()); try++ {
		require.Less(t, try, 5)
	}
}

// lateAfterItSpoke reports whether what the server repeats came when the application
// had begun to go on without its gateway.
func (w *world) lateAfterItSpoke(t *testing.T, to netip.Addr) (repeated bool) {
	t.Helper()
	var late, reset atomic.Bool
	var syns atomic.Int32
	w.h1.SetFaults(memhost.Faults{Lose: func(flags byte, _ uint32) bool {
		if flags&packet.FlagSYN != 0 {
			return syns.Add(1) > 1 && late.Load()
		}
		if late.Load() && flags&packet.FlagRST != 0 {
			reset.Store(true) // the kernel's answer to an ACCEPT that comes long after
		}
		return late.Load()
	}})
	defer w.h1.SetFaults(memhost.Faults{})
	client, server := w.g1.Steering(), w.g2.Steering()
	counts := func(s *memhost.Model, event string) uint64 {
		c, err := s.Counters()
		require.NoError(t, err)
		return c.Stats[event]
	}
	soon := func(what func() bool) bool {
		end := time.Now().Add(3 * time.Second)
		for !what() && time.Now().Before(end) {
			time.Sleep(time.Millisecond)
		}
		return what()
	}
	served, dropped := counts(server, "served"), counts(client, "released_drop")
	began := time.Now()
	conn := w.dialling(t, to)
	spoke := soon(func() bool { return counts(server, "served") > served })
	late.Store(true)
	require.NoError(t, client.Stall(true))
	repeated = soon(func() bool { return counts(client, "released_drop") > dropped || reset.Load() })
	late.Store(false)
	c := <-conn
	require.NotNil(t, c)
	require.Less(t, time.Since(began), connects)
	require.NoError(t, client.Stall(false))
	require.Eventually(t, client.Alive, patience, time.Millisecond)
	works(t, c)
	if spoke && repeated {
		w.native(t, c, "gateway_stale")
		find(t, w.g2, addrOf(c), wanted{side: config.SideServer, reason: "client_gone", end: admin.EndNative})
	}
	return spoke && repeated
}

// TestOnlyAChallengeHeard: of the client's gateway the server hears nothing but the
// answer to a second SYN-ACK, which a SYN doubled in the network has got. That proves
// nothing, so the server keeps nothing, and the application's next SYN is answered.
func TestOnlyAChallengeHeard(t *testing.T) {
	w := newWorld(t)
	w.g1 = w.up(w.h1, forgetful, func(c *memhost.GatewayConfig) { c.Config.Limits.HandshakeTimeout = 2 * time.Second })
	w.g2 = w.up(w.h2, forgetful)
	w.h2.SetFaults(memhost.Faults{Reorder: 0.5}) // of two SYN-ACKs one comes later
	families(t, func(t *testing.T, addr func(*memhost.Host) netip.Addr) {
		for try := 0; !w.onlyAChallenge(t, addr(w.h2)); try++ {
			require.Less(t, try, 10)
		}
	})
}

// onlyAChallenge reports whether the server has heard one.
func (w *world) onlyAChallenge(t *testing.T, to netip.Addr) bool {
	t.Helper()
	var heard, over atomic.Bool
	var syns atomic.Int32
	w.h1.SetFaults(memhost.Faults{Dup: 1, Lose: func(flags byte, offset uint32) bool {
		switch {
		case flags&packet.FlagSYN != 0:
			over.CompareAndSwap(false, syns.Add(1) > 2) // two are the offer
			return false
		case over.Load():
			return false
		case flags == packet.FlagACK && offset > 1:
			heard.Store(true)
		}
		return offset == 1 || flags&packet.FlagRST != 0
	}})
	defer w.h1.SetFaults(memhost.Faults{})
	began := time.Now()
	c := <-w.dialling(t, to)
	require.NotNil(t, c)
	require.Less(t, time.Since(began), connects)
	works(t, c)
	w.native(t, c, anyReason) // handshake_timeout, or wire_reset by the server's kernel
	stats, err := w.g2.Steering().Counters()
	require.NoError(t, err)
	require.Zero(t, stats.Stats["served"])
	return heard.Load()
}
