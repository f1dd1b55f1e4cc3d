package memory

import (
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/lab/memhost"
	"github.com/smcgw/smcgw/netstack"
)

// works checks that a connection does everything, and ends it.
func works(t *testing.T, c *netstack.HostConn) {
	t.Helper()
	pingPong(t, c, 20)
	require.NoError(t, sendAndEcho(c, 100<<10))
}

// echoesTo dials an echo and checks that it works.
func (w *world) echoesTo(t *testing.T, to netip.Addr, port uint16) *netstack.HostConn {
	t.Helper()
	c := w.dial(t, to, port)
	works(t, c)
	return c
}

// briefly is a handshake timeout for tests that wait for it.
func briefly(c *memhost.GatewayConfig) { c.Config.Limits.HandshakeTimeout = 100 * time.Millisecond }

// forgetful gateways remember no refusal.
func forgetful(c *memhost.GatewayConfig) { c.Config.Fallback.NegativeCache = time.Nanosecond }

func TestNativeByLocalDecision(t *testing.T) {
	w := newWorld(t)
	w.both()
	families(t, func(t *testing.T, addr func(*memhost.Host) netip.Addr) {
		h2 := addr(w.h2)
		w.native(t, w.echoesTo(t, h2, plainPort), "policy")
		w.native(t, w.echoesTo(t, addr(w.h1), echoPort), "address")
		_, err := w.g1.Admin().SetOff(t.Context(), true)
		require.NoError(t, err)
		w.native(t, w.echoesTo(t, h2, echoPort), "off")
		_, err = w.g1.Admin().SetOff(t.Context(), false)
		require.NoError(t, err)
		w.carried(t, w.echoesTo(t, h2, echoPort), report.CarrierShm, report.EndClosed)
	})
}

func TestObserve(t *testing.T) {
	w := newWorld(t)
	w.both(func(c *memhost.GatewayConfig) { c.Config.Mode = report.ModeObserve })
	w.native(t, w.echoesTo(t, w.h2.Addr4(), echoPort), "mode")
}

func TestPlainPeer(t *testing.T) {
	w := newWorld(t)
	w.both()
	families(t, func(t *testing.T, addr func(*memhost.Host) netip.Addr) {
		c := w.dial(t, addr(w.h3), sinkPort)
		upload(t, c, bulk)
		w.native(t, c, "peer_no_option")
		w.native(t, w.echoesTo(t, addr(w.h3), echoPort), "peer_no_option")
		_, err := w.tryDial(t, addr(w.h3), closedPort)
		require.ErrorIs(t, err, syscall.ECONNREFUSED)
		_, err = w.tryDial(t, addr(w.h2), closedPort)
		require.ErrorIs(t, err, syscall.ECONNREFUSED)
	})
}

func TestServerPolicy(t *testing.T) {
	w := newWorld(t)
	w.g1 = w.up(w.h1)
	w.g2 = w.up(w.h2, func(c *memhost.GatewayConfig) { c.Config.Policy = nil })
	c := w.echoesTo(t, w.h2.Addr4(), echoPort)
	w.native(t, c, "peer_no_option")
	find(t, w.g2, addrOf(c), wanted{side: report.SideServer, reason: "policy", state: "native"})
}

// TestDeclined: reasons that the gateways tell each other, and remember.
func TestDeclined(t *testing.T) {
	for reason, change := range map[string]settings{
		"no_common_carrier": func(c *memhost.GatewayConfig) { c.KernelID = [16]byte{1} },
		"no_memory":         func(c *memhost.GatewayConfig) { c.Config.Limits.Memory = 1 << 20 },
	} {
		t.Run(reason, func(t *testing.T) {
			w := newWorld(t)
			w.g1 = w.up(w.h1)
			w.g2 = w.up(w.h2, change)
			families(t, func(t *testing.T, addr func(*memhost.Host) netip.Addr) {
				for range 2 { // the second is native at once
					w.native(t, w.echoesTo(t, addr(w.h2), echoPort), reason)
				}
			})
			st, err := w.g1.Admin().Status(t.Context())
			require.NoError(t, err)
			require.EqualValues(t, 4, st.FallbacksTotal[reason])
			n, err := w.g1.Admin().FlushPeers(t.Context())
			require.NoError(t, err)
			require.EqualValues(t, 2, n.Count)
		})
	}
}

func TestNoCarrierOfOurs(t *testing.T) {
	w := newWorld(t)
	w.both(func(c *memhost.GatewayConfig) { c.Config.Carriers = []report.DeviceKind{} })
	families(t, func(t *testing.T, addr func(*memhost.Host) netip.Addr) {
		w.native(t, w.echoesTo(t, addr(w.h2), echoPort), "no_common_carrier")
	})
}

// TestServerRefuses: the listener goes away between SYN and dial. connect()
// fails as it does natively.
func TestServerRefuses(t *testing.T) {
	w := newWorld(t)
	w.both(forgetful)
	families(t, func(t *testing.T, addr func(*memhost.Host) netip.Addr) {
		w.h2.SetFaults(memhost.Faults{Delay: 30 * time.Millisecond})
		defer w.h2.SetFaults(memhost.Faults{})
		var err error
		for tries := 0; err == nil && tries < 20; tries++ { // the dial may be faster than we are
			err = w.dialWhileListenerLeaves(t, addr(w.h2))
		}
		require.ErrorIs(t, err, syscall.ECONNREFUSED)
		require.Eventually(t, func() bool {
			st, err := w.g1.Admin().Status(t.Context())
			require.NoError(t, err)
			return st.FallbacksTotal["app_refused"] > 0
		}, patience, 5*time.Millisecond)
	})
}

// dialWhileListenerLeaves connects to an address of h2, whose listener goes away when its
// gateway serves the connection.
func (w *world) dialWhileListenerLeaves(t *testing.T, to netip.Addr) error {
	v4, v6, err := w.h2.Listen(lateEchoes)
	require.NoError(t, err)
	served := func() uint64 {
		c, err := w.g2.Steering().Counters()
		require.NoError(t, err)
		return c.Stats["served"]
	}
	before := served()
	done := make(chan error)
	go func() {
		c, err := w.h1.DialFrom(t.Context(), netip.AddrPort{}, netip.AddrPortFrom(to, lateEchoes))
		if err == nil {
			err = c.Close()
		}
		done <- err
	}()
	require.Eventually(t, func() bool { return served() > before }, patience, time.Millisecond)
	require.NoError(t, v4.Close())
	require.NoError(t, v6.Close())
	return <-done
}

// TestPeerSilent: the peer's gateway accepts the SYN and says nothing more. The
// connection works, and the next one does not wait.
func TestPeerSilent(t *testing.T) {
	w := newWorld(t)
	w.g1 = w.up(w.h1, briefly)
	w.g2 = w.up(w.h2)
	w.h2.SetFaults(memhost.Faults{Mute: true})
	families(t, func(t *testing.T, addr func(*memhost.Host) netip.Addr) {
		begun := time.Now()
		c := w.dial(t, addr(w.h2), echoPort)
		require.Less(t, time.Since(begun), patience/4)
		works(t, c)
		w.native(t, c, "handshake_timeout")
		w.native(t, w.echoesTo(t, addr(w.h2), echoPort), "handshake_timeout")
	})
	st, err := w.g1.Admin().Status(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 4, st.FallbacksTotal["handshake_timeout"])
}

// TestLastWordLate: what the client's gateway said last is lost for longer than
// any deadline of the handshake. Its application is connected, so the server
// waits.
func TestLastWordLate(t *testing.T) {
	w := newWorld(t)
	w.both(briefly)
	families(t, func(t *testing.T, addr func(*memhost.Host) netip.Addr) {
		w.h1.SetFaults(memhost.Faults{MuteConfirm: true})
		c := w.dial(t, addr(w.h2), echoPort)
		time.Sleep(2 * time.Second) // the deadlines of both come to less than one
		w.h1.SetFaults(memhost.Faults{})
		works(t, c)
		w.carried(t, c, report.CarrierShm, report.EndClosed)
	})
}

// TestGatewayStalled: a gateway whose heartbeat is old decides nothing, on
// either side.
func TestGatewayStalled(t *testing.T) {
	w := newWorld(t)
	w.both(func(c *memhost.GatewayConfig) { c.HeartbeatTimeout = 1500 * time.Millisecond })
	families(t, func(t *testing.T, addr func(*memhost.Host) netip.Addr) {
		require.NoError(t, w.g2.Steering().Stall(true))
		require.Eventually(t, func() bool { return !w.g2.Steering().Alive() }, patience, time.Millisecond)
		c := w.echoesTo(t, addr(w.h2), echoPort)
		w.native(t, c, "peer_no_option")
		find(t, w.g2, addrOf(c), wanted{side: report.SideServer, reason: "gateway_stale", state: "native"})
		require.NoError(t, w.g1.Steering().Stall(true))
		require.Eventually(t, func() bool { return !w.g1.Steering().Alive() }, patience, time.Millisecond)
		w.native(t, w.echoesTo(t, addr(w.h2), echoPort), "gateway_stale")
		for _, g := range []*memhost.Gateway{w.g1, w.g2} {
			require.NoError(t, g.Steering().Stall(false))
			require.Eventually(t, g.Steering().Alive, patience, time.Millisecond)
		}
	})
}
