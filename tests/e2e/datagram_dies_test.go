package e2e

import (
	"fmt"
	"maps"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/lab/apps"
	"github.com/smcgw/smcgw/lab/testnet"
)

// pingPong is a set of clients, on both families, that go on whatever happens to their datagrams.
type pingPong []*testnet.Proc

// startPingPong starts clients and waits until each has been answered. A datagram that is not answered within the
// limit counts as lost.
func (d *datagrams) startPingPong(t *testing.T) (p pingPong) {
	t.Helper()
	for i, to := range []netip.AddrPort{d.h2.AddrPort4(echoUDP), d.h2.AddrPort6(echoUDP)} {
		for _, connected := range []string{"-connected=true", "-connected=false"} {
			c, err := d.h1.StartApp("ping-udp", "-to", to.String(), "-for", "100s", "-input", "-gap", "2ms", "-limit", "100ms",
				"-size", "0,24,100,1400", "-patient", connected, "-seed", fmt.Sprint(i+10))
			require.NoError(t, err)
			p = append(p, c)
		}
	}
	before := d.g1.udpStats().Received[d.via]
	require.Eventually(t, func() bool { return d.g1.udpStats().Received[d.via] > before+200 }, 30*time.Second, 20*time.Millisecond, "carried")
	return p
}

// over ends the clients and checks that each went on, was never silent for longer than longest, and got nothing that
// was not its own. It returns the worst values of all.
func (p pingPong) over(t *testing.T, longest time.Duration) (worst apps.Event) {
	t.Helper()
	for _, c := range p {
		require.NoError(t, c.CloseInput())
	}
	for _, c := range p {
		e := result(t, c)
		require.Zero(t, e.Failed, "%+v", e)
		require.Greater(t, e.OK, 10, "%+v", e)
		require.Less(t, time.Duration(e.GapMicros)*time.Microsecond, longest, "%+v\n%s", e, c.Output())
		if e.GapMicros > worst.GapMicros {
			worst = e
		}
		require.Subset(t, []string{"TIMEOUT"}, keys(e.Errnos), "%+v", e)
	}
	return worst
}

func keys(m map[string]int) []string {
	all := []string{}
	for k := range m {
		all = append(all, k)
	}
	return all
}

// now requires that datagrams between h1 and h2 are carried from now on, or that none are.
func (d *datagrams) now(t *testing.T, carried bool) {
	t.Helper()
	families(t, func(t *testing.T, addr func(*testnet.Host, uint16) string) {
		if !carried {
			d.leaves(t, func() { d.ping(t, d.h1, addr(d.h2, echoUDP), "-count", "20") })
			return
		}
		d.prove(t, netip.MustParseAddrPort(addr(d.h2, echoUDP)))
		d.carries(t, func() exchanged {
			d.ping(t, d.h1, addr(d.h2, echoUDP), "-count", "20")
			return exchanged{20, 20}
		})
	})
}

// meetAgain makes gateways that have lost each other find each other: by a question after a minute, or by the next
// connection, unless they remember that they cannot carry it.
func (d *datagrams) meetAgain(t *testing.T) {
	t.Helper()
	if thorough() {
		d.patience = 80 * time.Second
		return
	}
	d.flush()
	families(t, func(t *testing.T, addr func(*testnet.Host, uint16) string) {
		d.carried(t, d.h1, addr(d.h2, echoPort))
	})
}

// TestDatagramsSwitched turns gateways off and on, and stops them in order, on either side, while programs talk.
func TestDatagramsSwitched(t *testing.T) {
	t.Parallel()
	d := newDatagrams(t, false)
	clients := d.startPingPong(t)
	set := func(g *gw, verb string) {
		t.Helper()
		g.says(verb)
		time.Sleep(200 * time.Millisecond)
	}
	for _, g := range []*gw{d.g1, d.g2} {
		set(g, "off")
		var before report.DatagramStats
		require.Eventually(t, func() bool { // the other gateway hears of it
			before = d.g1.udpStats()
			time.Sleep(200 * time.Millisecond)
			return maps.Equal(before.Sent, d.g1.udpStats().Sent)
		}, 10*time.Second, 10*time.Millisecond, "%s is off", g.h.Name)
		time.Sleep(1500 * time.Millisecond) // longer than a peer may stay silent
		require.Equal(t, before.Sent, d.g1.udpStats().Sent, "%s is off", g.h.Name)
		set(g, "on")
		require.Eventually(t, func() bool { return d.g1.udpStats().Sent[d.via] > before.Sent[d.via] },
			30*time.Second, 50*time.Millisecond, "%s is on again\n%s", g.h.Name, d.dumpUDP())
	}
	e := clients.over(t, 10*time.Second)
	t.Logf("off and on: %+v", e)
	clients = d.startPingPong(t)
	d.down(d.h2)
	time.Sleep(time.Second)
	d.g2 = d.up(d.h2, datagramSettings())
	time.Sleep(200 * time.Millisecond)
	e = clients.over(t, 10*time.Second)
	t.Logf("stopped in order: %+v", e)
}

// TestDiesUnderDatagrams checks that, however and on whichever host a gateway ends, programs go on natively within
// two seconds, and that datagrams are carried again once there is another gateway.
func TestDiesUnderDatagrams(t *testing.T) {
	t.Parallel()
	kinds := deaths
	if !thorough() {
		kinds = deaths[1:2] // all of its processes at once
	}
	for _, k := range kinds {
		for _, host := range []string{"h1", "h2"} {
			t.Run(strings.ReplaceAll(k.name, " ", "_")+"/"+host, func(t *testing.T) {
				t.Parallel()
				datagramsDie(t, k, host)
			})
		}
	}
}

func datagramsDie(t *testing.T, k death, host string) {
	d := newDatagrams(t, false)
	d.serve(d.h2)
	h := d.net.Host(host)
	clients := d.startPingPong(t)
	g := d.gateways[h]
	k.do(g)
	time.Sleep(2 * time.Second)
	require.Eventually(t, func() bool { return len(g.processes()) == 0 }, 30*time.Second, 50*time.Millisecond)
	out, err := h.Run(t.Context(), binary, "cleanup", "-c", g.config)
	require.NoError(t, err, out)
	again := d.up(h, datagramSettings())
	if host == "h1" {
		d.g1 = again
	} else {
		d.g2 = again
	}
	e := clients.over(t, 10*time.Second)
	t.Logf("%s on %s: the longest silence: %+v", k.name, host, e)
	d.meetAgain(t)
	d.now(t, true)
}

// TestDatagramsOverLossySoft checks that datagrams are lost, doubled and delayed exactly as the network loses,
// doubles and delays the carrier's packets.
func TestDatagramsOverLossySoft(t *testing.T) {
	t.Parallel()
	d := newDatagrams(t, false)
	d.prove(t, d.h2.AddrPort4(echoUDP))
	families(t, func(t *testing.T, addr func(*testnet.Host, uint16) string) {
		for end := time.Now().Add(2 * time.Minute); ; {
			before1, before2 := d.g1.stats(), d.g2.stats()
			e, err := d.h1.RunApp(patience(t), "ping-udp", "-to", addr(d.h2, echoUDP), "-count", "500", "-patient", "-limit", "150ms",
				"-size", "24,1000,1400", "-gap", "200us")
			require.NoError(t, err)
			require.Zero(t, e.Failed, "%+v", e)
			require.Positive(t, e.Lost, "%+v", e)
			s1, s2 := d.g1.stats(), d.g2.stats()
			carried := s1.Datagrams.Sent[d.via] - before1.Datagrams.Sent[d.via]
			t.Logf("%d carried: %+v", carried, e)
			if e.Lost < 250 && carried >= 400 {
				return
			}
			// A machine that is busy keeps gateways from carrying, and answers from coming in time.
			explained := busy(s1) > busy(before1) || busy(s2) > busy(before2) || e.Late > 100
			require.True(t, explained && time.Now().Before(end), "%d carried: %+v\n%s", carried, e, d.dumpUDP())
		}
	})
	p, err := d.h2.StartApp("serve-quic", fmt.Sprintf("quic=[::]:%d", quicPort))
	require.NoError(t, err)
	d.carriedAtLeast = 0.5
	d.carries(t, func() exchanged { return moveQUIC(t, 100_000, d.h1, d.h1.Addr4, d.h2.AddrPort4(quicPort), p) })
}

// TestDatagramsPathLostSoft checks that programs go on natively when the network begins to drop what the carrier
// sends, as a new firewall rule does.
func TestDatagramsPathLostSoft(t *testing.T) {
	t.Parallel()
	d := newDatagrams(t, false)
	clients := d.startPingPong(t)
	require.NoError(t, d.net.SetBox(testnet.Box{UDP: testnet.Datagrams{Port: rdmaPort, Loss: 1000}}))
	require.Eventually(t, func() bool {
		before := d.g1.udpStats()
		time.Sleep(300 * time.Millisecond)
		return d.g1.udpStats().Sent[d.via]-before.Sent[d.via] <= 5
	}, 30*time.Second, 100*time.Millisecond, "all is native")
	e := clients.over(t, 10*time.Second)
	t.Logf("the longest silence: %+v", e)
	if thorough() { // these gateways ask each other once a minute
		require.NoError(t, d.net.SetBox(testnet.Box{}))
		d.meetAgain(t)
		d.now(t, true)
	}
}
