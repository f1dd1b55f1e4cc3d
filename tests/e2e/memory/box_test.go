package memory

import (
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/lab/memhost"
	"github.com/smcgw/smcgw/netstack"
)

// TestBoxEatsOffers: a box drops SYNs with the option. A connection pays one
// retransmission; after two of them the destination is left alone.
func TestBoxEatsOffers(t *testing.T) {
	w := newWorld(t)
	w.both()
	w.h1.SetFaults(memhost.Faults{EatOffers: true})
	families(t, func(t *testing.T, addr func(*memhost.Host) netip.Addr) {
		h2 := addr(w.h2)
		w.echoesTo(t, h2, echoPort)
		w.native(t, w.echoesTo(t, h2, echoPort), "option_blackholed")
		fastest := patience
		for try := 0; try < 10 && fastest >= 900*time.Millisecond; try++ { // a busy machine may be as slow as a retry
			begun := time.Now()
			c := w.dial(t, h2, echoPort)
			fastest = min(fastest, time.Since(begun))
			works(t, c)
			w.native(t, c, "option_blackholed")
		}
		require.Less(t, fastest, 900*time.Millisecond, "no SYN was lost")
	})
	peers, err := w.g1.Admin().Peers(t.Context())
	require.NoError(t, err)
	require.Len(t, peers.Peers, 2)
	for _, p := range peers.Peers {
		require.Equal(t, report.PeerBlackholed, p.State)
	}
	w.h1.SetFaults(memhost.Faults{})
	_, err = w.g1.Admin().FlushPeers(t.Context())
	require.NoError(t, err)
	w.carried(t, w.echoesTo(t, w.h2.Addr4(), echoPort), report.CarrierShm, report.EndClosed)
}

func TestBoxStripsOffer(t *testing.T) {
	w := newWorld(t)
	w.both()
	w.h1.SetFaults(memhost.Faults{StripOffer: true})
	families(t, func(t *testing.T, addr func(*memhost.Host) netip.Addr) {
		w.native(t, w.echoesTo(t, addr(w.h2), echoPort), "peer_no_option")
	})
}

func TestBoxMirrorsOffer(t *testing.T) {
	w := newWorld(t)
	w.both()
	w.h1.SetFaults(memhost.Faults{Mirror: true})
	families(t, func(t *testing.T, addr func(*memhost.Host) netip.Addr) {
		w.native(t, w.echoesTo(t, addr(w.h3), echoPort), "option_mirrored")
		// The server's gateway has accepted, and the client has not seen it.
		c := w.echoesTo(t, addr(w.h2), echoPort)
		w.native(t, c, "option_mirrored")
		w.raw(t, c)
	})
}

// raw checks that the server's gateway passed bytes on as they were.
func (w *world) raw(t *testing.T, c *netstack.HostConn) {
	t.Helper()
	info := find(t, w.g2, addrOf(c), wanted{
		side: report.SideServer, carrier: report.CarrierRelay, reason: "accept_lost", state: "closing",
	})
	require.NotZero(t, info.TxBytes)
	require.NotZero(t, info.RxBytes)
}

// TestBoxStripsAccept: the client's kernel sees a plain SYN-ACK and is native;
// the server's gateway relays what it says as it is, and accepts no offer from
// there for a while.
func TestBoxStripsAccept(t *testing.T) {
	w := newWorld(t)
	w.both()
	w.h1.SetFaults(memhost.Faults{StripAccept: true})
	families(t, func(t *testing.T, addr func(*memhost.Host) netip.Addr) {
		c := w.echoesTo(t, addr(w.h2), echoPort)
		w.native(t, c, "peer_no_option")
		w.raw(t, c)
		c = w.echoesTo(t, addr(w.h2), echoPort)
		w.native(t, c, "peer_no_option")
		find(t, w.g2, addrOf(c), wanted{side: report.SideServer, reason: "accept_lost", state: "native"})
	})
}

// TestServerSpeaksFirst through a raw relay: the server's first bytes do not
// wait for the client's.
func TestServerSpeaksFirst(t *testing.T) {
	w := newWorld(t)
	w.both()
	w.h1.SetFaults(memhost.Faults{StripAccept: true})
	c := w.hold(t, w.h2.Addr4())
	require.NoError(t, c.Close())
	require.NoError(t, w.ended(t, w.h2))
}

// TestBoxStripsConfirm: the server's gateway cannot know that a gateway speaks,
// until it reads a handshake message, which must never reach an application. It
// says nothing, and the client takes its connection back.
func TestBoxStripsConfirm(t *testing.T) {
	w := newWorld(t)
	w.g1 = w.up(w.h1, briefly)
	w.g2 = w.up(w.h2)
	w.h1.SetFaults(memhost.Faults{StripConfirm: true})
	families(t, func(t *testing.T, addr func(*memhost.Host) netip.Addr) {
		c := w.echoesTo(t, addr(w.h2), echoPort)
		w.native(t, c, anyReason) // handshake_timeout, or wire_reset by the server's kernel
		find(t, w.g2, addrOf(c), wanted{
			side: report.SideServer, carrier: anyCarrier, reason: "accept_lost", end: report.EndAborted,
		})
		_, err := w.g1.Admin().FlushPeers(t.Context()) // the server still remembers
		require.NoError(t, err)
		c = w.echoesTo(t, addr(w.h2), echoPort)
		w.native(t, c, "peer_no_option")
		find(t, w.g2, addrOf(c), wanted{side: report.SideServer, reason: "accept_lost", state: "native"})
	})
}

// TestLossyWire: with lost, doubled and late packets every connection works,
// carried or not.
func TestLossyWire(t *testing.T) {
	faults := memhost.Faults{Loss: 0.02, Dup: 0.01, Reorder: 0.02, Delay: time.Millisecond}
	for name, also := range map[string]bool{"carried": false, "relay": true} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.both(forgetful)
			w.h1.SetFaults(faults)
			w.h2.SetFaults(memhost.Faults{Misdirect: also})
			families(t, func(t *testing.T, addr func(*memhost.Host) netip.Addr) {
				for range 10 {
					w.echoesTo(t, addr(w.h2), echoPort)
				}
				c := w.dial(t, addr(w.h2), sinkPort)
				upload(t, c, 1<<20)
				c = w.dial(t, addr(w.h2), sourcePort)
				download(t, c, 1<<20)
				works(t, w.dial(t, addr(w.h3), echoPort))
			})
			st, err := w.g1.Admin().Status(t.Context())
			require.NoError(t, err)
			t.Logf("flows %v, fallbacks %v", st.FlowsTotal, st.FallbacksTotal)
			require.Positive(t, st.FlowsTotal[report.CarrierShm]+st.FlowsTotal[report.CarrierRelay])
		})
	}
}
