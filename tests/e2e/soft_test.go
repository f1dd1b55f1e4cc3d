package e2e

import (
	"net"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/admin"
	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/lab/apps"
	"github.com/smcgw/smcgw/lab/testnet"
)

const both2 = "shm, soft" // the default carriers

// TestSoftBetweenMachines checks that hosts that share no memory choose the other carrier by themselves, and that
// hosts that do prefer memory.
func TestSoftBetweenMachines(t *testing.T) {
	t.Parallel()
	w := newServed(t)
	w.up(w.h1, settings{Carriers: both2})
	w.up(w.h2, settings{Carriers: both2, ShmDir: "other"})
	families(t, func(t *testing.T, addr func(*testnet.Host, uint16) string) {
		for range 3 {
			w.carriedAppBy(t, report.CarrierSoft, w.h1, "ping", "-count", "20", "-to", addr(w.h2, echoPort))
		}
	})
	w.restart(w.h2, settings{Carriers: both2})
	// What could not be shared is tried again after a while; a new gateway knows nothing of it.
	w.restart(w.h1, settings{Carriers: both2})
	w.carriedAppBy(t, report.CarrierShm, w.h1, "ping", "-count", "20", "-to", w.h2.AddrPort4(echoPort).String())
}

// TestSoftPathWithoutUDP checks that, where TCP passes and RoCEv2 does not, connections go over the wire leg, and
// then natively, until that is forgotten.
func TestSoftPathWithoutUDP(t *testing.T) {
	t.Parallel()
	w := newServed(t)
	w.upBoth(settings{Handshake: quick, Carriers: "soft"})
	to := w.h2.AddrPort4(echoPort).String()
	box := testnet.Box{UDP: testnet.Datagrams{Port: rdmaPort, Loss: 1000}}
	for _, name := range []string{"both ways", "there"} {
		t.Run(name, func(t *testing.T) {
			w.restart(w.h1, settings{Handshake: quick, Carriers: "soft"}) // a proof stays valid for a while
			w.flush()
			require.NoError(t, w.h1.SetBox(box))
			if name == "both ways" {
				require.NoError(t, w.h2.SetBox(box))
			}
			e := w.carriedAppBy(t, report.CarrierRelay, w.h1, "ping", "-count", "20", "-to", to)
			require.Equal(t, "carrier_unreachable", w.gateways[w.h1].closedConn(from(e)).Reason)
			unreachable := local("carrier_unreachable")
			e = w.mustApp(w.h1, "ping", "-count", "20", "-to", to)
			for try := 0; try < lateTries && w.gateways[w.h1].wasLate(from(e), unreachable); try++ {
				e = w.mustApp(w.h1, "ping", "-count", "20", "-to", to)
			}
			w.gateways[w.h1].awaitConn("native", func(c report.ConnInfo) bool {
				return from(e)(c) && c.End == report.EndNative && c.Reason == "carrier_unreachable"
			}, "--all")
			require.NoError(t, w.net.SetBox(testnet.Box{}))
			w.flush()
			w.carriedAppBy(t, report.CarrierSoft, w.h1, "ping", "-count", "20", "-to", to)
		})
	}
}

// TestSoftDevices checks that an operator sees the device, its counters, and why it is missing, and that new
// addresses are used.
func TestSoftDevices(t *testing.T) {
	t.Parallel()
	w := newServed(t)
	g1 := w.up(w.h1, settings{Carriers: both2})
	g2 := w.up(w.h2, settings{Carriers: "soft"})
	w.carriedAppBy(t, report.CarrierSoft, w.h1, "transfer", "-up", "5000000", "-down", "5000000", "-to", w.h2.AddrPort4(transferPort).String())

	list := g1.devices()
	require.Len(t, list, 2)
	soft := list[1]
	require.Equal(t, report.DeviceActive, soft.State)
	require.EqualValues(t, 4791, soft.UDPPort)
	require.Equal(t, 1024, soft.MTU)
	require.Contains(t, soft.GIDs, netip.AddrFrom16(w.h1.Addr4.As16()))
	require.Contains(t, soft.GIDs, w.h1.Addr6)
	require.Greater(t, soft.Counters["tx_bytes"], uint64(5_000_000))
	require.Zero(t, soft.Counters["drop_icrc"])
	metrics := g1.metrics(t)
	require.InDelta(t, float64(soft.Counters["tx_packets"]), metrics[`smcgw_device_events_total{device="soft0",event="tx_packets"}`], 1000)
	require.InDelta(t, 1, metrics[`smcgw_device_up{device="soft0"}`], 0)

	require.NoError(t, w.h1.AddAddress(netip.MustParsePrefix("10.77.0.111/24")))
	fresh := []string{"ping", "-bind", "10.77.0.111:0", "-count", "5", "-to", w.h2.AddrPort4(echoPort).String()}
	var e apps.Event
	w.inTime(func() bool { // it hears of the address a little later
		e = w.mustApp(w.h1, fresh...)
		return !g1.knows(from(e), local("address")) && !w.foundLateBy(e, report.CarrierSoft)
	})
	w.carriedBy(e, report.CarrierSoft)
	require.Len(t, g1.devices(), 3)
	_, ok := g1.peer(w.h2.Addr4, echoPort)
	require.False(t, ok, "an address that is new here is no fact about the peer")

	g2.stop()
	for _, port := range []uint16{4791, 4793} {
		var taken net.PacketConn
		require.NoError(t, w.h2.Do(func() (err error) {
			taken, err = net.ListenPacket("udp", w.h2.AddrPort4(port).String())
			return err
		}))
		defer taken.Close()
	}
	g2 = w.restart(w.h2, settings{Carriers: "soft"})
	out := g2.says("devices")
	require.Contains(t, out, "failed")
	require.Contains(t, out, "address already in use")
	require.Equal(t, []string{"device_failed"}, g2.status().Degraded)
	w.flush()
	w.inTime(func() bool {
		e = w.mustApp(w.h1, "ping", "-count", "5", "-to", w.h2.AddrPort4(echoPort).String())
		return !g1.wasLate(from(e), nothing)
	})
	g1.awaitConn("native", func(c report.ConnInfo) bool { return from(e)(c) && c.Reason == "device_failed" }, "--all")
}

// TestSoftBesideRDMA checks that, on a host where something else holds the RoCEv2 port, such as the kernel's
// rdma_rxe, everything on soft uses the alternate port: both ways, through a takeover, and after the port is free
// again.
func TestSoftBesideRDMA(t *testing.T) {
	t.Parallel()
	w := newWorld(t, testnet.Config{})
	w.serve(w.h1)
	w.serve(w.h2)
	free := w.occupyRoCE(w.h2)
	_, g2 := w.upBoth(settings{Carriers: "soft"})
	note := "soft0: receives on UDP port 4793: UDP port 4791 is in use"
	require.EqualValues(t, 4793, g2.devices()[0].UDPPort)
	for _, verb := range []string{"devices", "status"} {
		out := g2.says(verb)
		require.Contains(t, out, note)
	}
	require.Empty(t, g2.status().Degraded)
	exchange := func() {
		t.Helper()
		families(t, func(t *testing.T, addr func(*testnet.Host, uint16) string) {
			w.carriedAppBy(t, report.CarrierSoft, w.h1, "transfer", "-up", "3000000", "-down", "3000000", "-to", addr(w.h2, transferPort))
			var back apps.Event
			w.inTime(func() bool {
				return w.noneLate(func() {
					back = w.mustApp(w.h2, "transfer", "-up", "3000000", "-down", "3000000", "-to", addr(w.h1, transferPort))
				})
			})
			require.Equal(t, report.CarrierSoft, w.gateways[w.h2].closedConn(from(back)).Carrier)
		})
	}
	exchange()
	old := g2
	g2 = old.upgrade()
	require.EqualValues(t, 4793, g2.devices()[0].UDPPort)
	exchange()
	old.ended(t)
	free()
	g2 = w.restart(w.h2, settings{Carriers: "soft"})
	require.EqualValues(t, 4791, g2.devices()[0].UDPPort)
	exchange()
}

// occupyRoCE binds the RoCEv2 port at all addresses of a host until the returned function is called.
func (w *world) occupyRoCE(h *testnet.Host) (free func()) {
	w.t.Helper()
	var socks []net.PacketConn
	require.NoError(w.t, h.Do(func() error {
		for _, at := range []string{"0.0.0.0:4791", "[::]:4791"} {
			c, err := net.ListenPacket("udp"+map[bool]string{true: "6", false: "4"}[at[0] == '['], at)
			if err != nil {
				return err
			}
			socks = append(socks, c)
		}
		return nil
	}))
	free = func() {
		for _, c := range socks {
			_ = c.Close()
		}
	}
	w.t.Cleanup(free)
	return free
}

func (g *gw) devices() []report.DeviceInfo {
	g.w.t.Helper()
	var l admin.DeviceList
	g.cliJSON(&l, "devices")
	return l.Devices
}
