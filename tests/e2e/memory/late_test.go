package memory

import (
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway"
	"github.com/smcgw/smcgw/internal/testnet/memhost"
	"github.com/smcgw/smcgw/negotiate"
	"github.com/smcgw/smcgw/netstack"
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

// TestGatewayLateAfterItSpoke: the client's gateway has answered the server's, and is
// then late. The application's kernel goes on without it, and never with what the
// server's gateway repeats: that is the other end of what its own gateway has said.
func TestGatewayLateAfterItSpoke(t *testing.T) {
	w := newWorld(t)
	w.g1 = w.up(w.h1, forgetful, func(c *memhost.GatewayConfig) { c.HeartbeatTimeout = 800 * time.Millisecond })
	w.g2 = w.up(w.h2, forgetful)
	w.h2.SetFaults(memhost.Faults{Delay: 100 * time.Millisecond}) // it repeats what it says behind the application's SYN
	for try := 0; !w.lateAfterItSpoke(t, w.h2.Addr4()); try++ {
		require.Less(t, try, 5)
	}
}

// lateAfterItSpoke reports whether what the server repeats came when the application
// had begun to go on without its gateway.
func (w *world) lateAfterItSpoke(t *testing.T, to netip.Addr) (repeated bool) {
	t.Helper()
	var over atomic.Bool
	var syns atomic.Int32
	w.h1.SetFaults(memhost.Faults{Lose: func(flags byte, _ uint32) bool {
		return !over.Load() && (flags&negotiate.FlagSYN == 0 || syns.Add(1) > 1)
	}})
	defer w.h1.SetFaults(memhost.Faults{})
	steering := w.g1.Steering()
	counts := func(event string) uint64 {
		c, err := steering.Counters()
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
	accepted, dropped := counts("accepted"), counts("released_drop")
	conn := w.dialling(t, to)
	spoke := soon(func() bool { return counts("accepted") > accepted })
	require.NoError(t, steering.Stall(true))
	repeated = soon(func() bool { return counts("released_drop") > dropped })
	over.Store(true)
	c := <-conn
	require.NotNil(t, c)
	require.NoError(t, steering.Stall(false))
	require.Eventually(t, steering.Alive, patience, time.Millisecond)
	works(t, c)
	if spoke && repeated {
		w.native(t, c, "gateway_stale")
		find(t, w.g2, addrOf(c), wanted{side: gateway.SideServer, reason: "client_gone", end: gateway.EndNative})
	}
	return spoke && repeated
}

// TestOnlyAChallengeHeard: of the client's gateway the server hears nothing but the
// answer to its repeated SYN-ACK. It takes that for a native client whose first bytes
// are still to come; its relay must not keep the application's SYN from being answered.
func TestOnlyAChallengeHeard(t *testing.T) {
	w := newWorld(t)
	w.g1 = w.up(w.h1, forgetful, func(c *memhost.GatewayConfig) { c.Config.Limits.HandshakeTimeout = 2 * time.Second })
	w.g2 = w.up(w.h2, forgetful, briefly)
	families(t, func(t *testing.T, addr func(*memhost.Host) netip.Addr) {
		var relayed, over atomic.Bool
		var syns atomic.Int32
		w.h1.SetFaults(memhost.Faults{Lose: func(flags byte, offset uint32) bool {
			switch {
			case over.Load() || flags&negotiate.FlagSYN != 0 && syns.Add(1) == 1:
				return false
			case flags&negotiate.FlagSYN != 0:
				over.Store(relayed.Load())
				return !over.Load()
			default:
				return offset == 1 || flags&negotiate.FlagRST != 0
			}
		}})
		defer w.h1.SetFaults(memhost.Faults{})
		conn := w.dialling(t, addr(w.h2))
		require.Eventually(t, func() bool {
			list, err := w.g2.Admin().Conns(t.Context(), gateway.ConnQuery{All: true})
			require.NoError(t, err)
			for _, c := range list.Conns {
				if c.Reason == "accept_lost" && c.State == "carrying" {
					return true
				}
			}
			return false
		}, patience, time.Millisecond)
		relayed.Store(true)
		c := <-conn
		require.NotNil(t, c)
		works(t, c)
		w.native(t, c, "handshake_timeout")
	})
}
