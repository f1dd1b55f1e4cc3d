package e2e

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/admin"
	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/lab/apps"
	"github.com/smcgw/smcgw/lab/testnet"
	"github.com/smcgw/smcgw/negotiate"
)

// datagrams is a world with servers of numbered datagrams on h2 and h3, and gateways on h1 and h2, or none at all:
// what tests demand of programs must first hold natively.
type datagrams struct {
	*world
	native         bool
	g1, g2         *gw
	server, plain  *testnet.Proc // on h2 and h3
	servers        []*testnet.Proc
	carriedAtLeast float64       // this fraction of the datagrams
	patience       time.Duration // how long until datagrams are carried
}

// udpRule returns a policy that carries the programs' ports for UDP only. For TCP the rule test selects iperf3's
// connection.
func udpRule(peers string) string {
	if peers != "" {
		peers = ", peers: [" + peers + "]"
	}
	return fmt.Sprintf("  - { name: datagrams, match: { proto: udp, ports: [%d, %d, %d, %d, %d, %d, %d]%s }, action: accelerate }\n",
		dnsPort, iperfPort, sockperfPort, quicPort, echoUDP, sinkUDP, deadUDP, peers)
}

// named selects all hosts by address, so a gateway may ask them.
const named = `10.77.0.0/24, "fd77::/64"`

func datagramSettings() settings { return settings{Policy: udpRule(named)} }

// newDatagramWorld builds the world without servers and gateways.
func newDatagramWorld(t *testing.T) *datagrams {
	t.Helper()
	return &datagrams{world: newWorld(t, testnet.Config{}), carriedAtLeast: 1, patience: 30 * time.Second}
}

// newDatagrams builds the world with servers and, unless native is set, gateways.
func newDatagrams(t *testing.T, native bool) *datagrams {
	t.Helper()
	d := newDatagramWorld(t)
	d.begin(t, native)
	return d
}

// begin starts servers and gateways.
func (d *datagrams) begin(t *testing.T, native bool) {
	t.Helper()
	d.native = native
	for _, h := range d.net.Hosts() { // no rate limit: there must be as many errors as causes
		require.NoError(t, h.SetSysctl("net.ipv4.icmp_ratelimit", "0"))
		require.NoError(t, h.SetSysctl("net.ipv6.icmp.ratelimit", "0"))
	}
	d.server, d.plain = d.serveNumbered(d.h2), d.serveNumbered(d.h3)
	if !native {
		d.g1, d.g2 = d.up(d.h1, datagramSettings()), d.up(d.h2, datagramSettings())
		d.prove(t, d.h2.AddrPort4(echoUDP))
		d.prove(t, d.h2.AddrPort6(echoUDP))
	}
	t.Cleanup(func() {
		for _, p := range d.servers {
			require.Empty(t, aliens(p), "what no program has sent reaches a program")
		}
	})
}

func (d *datagrams) serveNumbered(h *testnet.Host) *testnet.Proc {
	d.t.Helper()
	p, err := h.StartApp("serve-udp", fmt.Sprintf("echo=[::]:%d", echoUDP), fmt.Sprintf("sink=[::]:%d", sinkUDP), fmt.Sprintf("echo=[::]:%d", plainUDP))
	require.NoError(d.t, err)
	d.servers = append(d.servers, p)
	return p
}

// ping runs a client of numbered datagrams, which must succeed.
func (d *datagrams) ping(t *testing.T, from *testnet.Host, to string, args ...string) apps.Event {
	t.Helper()
	e, err := from.RunApp(patience(t), append([]string{"ping-udp", "-to", to}, args...)...)
	require.NoError(t, err)
	require.Zero(t, e.Failed+e.Lost, "%v: %+v", args, e)
	return e
}

// prove sends datagrams until they are carried both ways. Some may be lost if a gateway has just died.
func (d *datagrams) prove(t *testing.T, to netip.AddrPort) {
	t.Helper()
	for end := time.Now().Add(d.patience); ; time.Sleep(20 * time.Millisecond) {
		before := d.g1.udpStats()
		e, err := d.h1.RunApp(t.Context(), "ping-udp", "-to", to.String(), "-patient", "-limit", "1s")
		require.NoError(t, err, "%+v", e)
		if s := d.g1.udpStats(); s.Sent[d.via] > before.Sent[d.via] && s.Received[d.via] > before.Received[d.via] {
			return
		}
		if time.Now().After(end) {
			require.FailNow(t, "nothing is carried to "+to.String(), d.dumpUDP())
		}
	}
}

func (d *datagrams) dumpUDP() string {
	var b strings.Builder
	for _, g := range d.gateways {
		fmt.Fprintf(&b, "%s: %+v\n%s\n", g.h.Name, g.udpStats(), tail(g.dump(), 4000))
	}
	return b.String()
}

// udpStats returns the counters of datagrams.
func (g *gw) udpStats() report.DatagramStats { return g.stats().Datagrams }

// stats returns the gateway's counters.
func (g *gw) stats() report.Stats {
	g.w.t.Helper()
	return asks(g, (*admin.Client).Stats)
}

// busy counts what a gateway left native because a gateway got no processor: pairs of ends while it missed its own
// beat or the peer's, perhaps in a program before, and datagrams for which the other gateway had no room for too long.
func busy(s report.Stats) uint64 {
	native := s.Protocols[report.ProtoUDP].Native
	return native[negotiate.ReasonGatewayStale.String()] + native[negotiate.ReasonPeerDead.String()] + s.Datagrams.Returned
}

// carries runs something between h1 and h2, all of whose datagrams must be carried both ways, by this test's carrier
// alone. If a gateway on a busy machine misses a beat and reports that some went natively, it runs it again.
func (d *datagrams) carries(t *testing.T, run func() exchanged) {
	t.Helper()
	if d.native {
		run()
		return
	}
	for patience := time.Now().Add(2 * time.Minute); ; {
		before1, before2 := d.g1.stats(), d.g2.stats()
		x := run()
		var s1, s2 report.Stats
		enough := func() bool {
			s1, s2 = d.g1.stats(), d.g2.stats()
			sent, received := uint64(float64(x.sent)*d.carriedAtLeast), uint64(float64(x.received)*d.carriedAtLeast)
			return s1.Datagrams.Sent[d.via]-before1.Datagrams.Sent[d.via] >= sent &&
				s2.Datagrams.Delivered-before2.Datagrams.Delivered >= sent &&
				s2.Datagrams.Sent[d.via]-before2.Datagrams.Sent[d.via] >= received &&
				s1.Datagrams.Delivered-before1.Datagrams.Delivered >= received
		}
		for end := time.Now().Add(time.Second); !enough() && time.Now().Before(end); {
			time.Sleep(20 * time.Millisecond)
		}
		for c, n := range s1.Datagrams.Sent {
			require.True(t, c == d.via || n == before1.Datagrams.Sent[c], "%s carried, too: %+v", c, s1.Datagrams)
		}
		if enough() {
			return
		}
		t.Logf("%+v of which some were native: h1 from %+v to %+v, h2 from %+v to %+v", x, before1, s1, before2, s2)
		explained := busy(s1) > busy(before1) || busy(s2) > busy(before2)
		require.True(t, explained && time.Now().Before(patience), "not all was carried, and processors were free: %t\n%s", !explained, d.dumpUDP())
	}
}

// leaves runs something, nothing of which may be carried.
func (d *datagrams) leaves(t *testing.T, run func()) {
	t.Helper()
	if d.native {
		run()
		return
	}
	before := d.g1.udpStats()
	run()
	time.Sleep(50 * time.Millisecond)
	after := d.g1.udpStats()
	require.Equal(t, before.Sent, after.Sent)
	require.Equal(t, before.Delivered, after.Delivered)
}
