package memory

import (
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/report"
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
// late. The server's program may have accepted the connection, so the application's kernel
// does not go on without the gateway, which resumes and carries it: the program sees one.
func TestGatewayLateAfterItSpoke(t *testing.T) {
	w := newWorld(t)
	w.g1 = w.up(w.h1, forgetful, func(c *memhost.GatewayConfig) { c.HeartbeatTimeout = 600 * time.Millisecond })
	w.g2 = w.up(w.h2, forgetful)
	w.h2.SetFaults(memhost.Faults{Delay: 50 * time.Millisecond}) // its ACCEPT comes to a gateway that is late
	for try := 0; !w.lateAfterItSpoke(t, w.h2.Addr4()); try++ {
		require.Less(t, try, 5)
	}
}

// lateAfterItSpoke reports whether the gateway was late between PROPOSAL and ACCEPT, and
// the application has sent its SYN again meanwhile.
func (w *world) lateAfterItSpoke(t *testing.T, to netip.Addr) (late bool) {
	t.Helper()
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
	served, again := counts(server, "served"), counts(client, "syn_retransmit_drop")
	conn := w.dialling(t, to)
	spoke := soon(func() bool { return counts(server, "served") > served })
	require.NoError(t, client.Stall(true))
	held := soon(func() bool { return counts(client, "syn_retransmit_drop") > again && !client.Alive() })
	late = spoke && held && len(conn) == 0
	require.NoError(t, client.Stall(false))
	c := <-conn
	require.NotNil(t, c)
	works(t, c)
	if late {
		w.carried(t, c, report.CarrierShm, report.EndClosed)
	}
	return late
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
