package e2e

import (
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/lab/apps"
	"github.com/smcgw/smcgw/lab/testnet"
)

// TestDatagramSocketsNative checks that what TestDatagramSockets demands holds without any gateway.
func TestDatagramSocketsNative(t *testing.T) { datagramSockets(t, newDatagrams(t, true)) }

func datagramSockets(t *testing.T, d *datagrams) {
	t.Run("one socket many peers", d.oneSocketManyPeers)
	t.Run("many sockets one peer", d.manySocketsOnePeer)
	t.Run("addresses", d.addresses)
	t.Run("sizes", d.datagramSizes)
	t.Run("segmented by the kernel", d.segmented)
	t.Run("closed port", d.closedPort)
	t.Run("server goes and comes", d.serverGoesAndComes)
	t.Run("rejected", d.rejected)
	t.Run("to all", d.toAll)
	t.Run("by port", d.byPort)
	t.Run("both begin", d.bothBegin)
	t.Run("behind firewalls", d.behindFirewalls)
}

// seen waits until a server has seen a client and returns the event.
func seen(t *testing.T, server *testnet.Proc, client string) apps.Event {
	t.Helper()
	es, err := server.WaitEvents(patience(t), 1, func(e apps.Event) bool { return e.Event == "peer" && e.Remote == client })
	require.NoError(t, err)
	return es[0]
}

// got asks a server how many datagrams it has received from a client.
func got(t *testing.T, server *testnet.Proc, client string) (n int) {
	t.Helper()
	reports := 1
	for _, e := range server.Events() {
		if e.Event == "reported" {
			reports++
		}
	}
	require.NoError(t, server.Send("report"))
	_, err := server.WaitEvents(patience(t), reports, func(e apps.Event) bool { return e.Event == "reported" })
	require.NoError(t, err)
	for _, e := range server.Events() {
		switch {
		case e.Event == "reported":
			if reports--; reports > 0 {
				n = 0
			}
		case e.Event == "tally" && e.Remote == client:
			n += e.OK
		}
	}
	return n
}

// oneSocketManyPeers uses one unconnected socket, on both families, to hosts with and without a gateway in turn.
func (d *datagrams) oneSocketManyPeers(t *testing.T) {
	var to []string
	for _, h := range []*testnet.Host{d.h2, d.h3} {
		to = append(to, h.AddrPort4(echoUDP).String(), h.AddrPort6(echoUDP).String(), h.AddrPort4(plainUDP).String())
	}
	n := 0
	d.carries(t, func() exchanged {
		n += 100
		d.ping(t, d.h1, strings.Join(to, ","), "-mapped", "-bind", "[::]:9200", "-count", "600", "-size", "0,1,500,1200")
		return exchanged{200, 200}
	})
	for _, p := range []*testnet.Proc{d.server, d.plain} {
		for _, client := range []netip.AddrPort{d.h1.AddrPort4(9200), d.h1.AddrPort6(9200)} {
			e := seen(t, p, client.String())
			require.Equal(t, "eth0", e.Device)
			want := n
			if client.Addr().Is4() { // at two ports
				want *= 2
			}
			require.Equal(t, want, got(t, p, client.String()), "from %s", client)
		}
	}
}

// manySocketsOnePeer checks that a server tells its clients apart.
func (d *datagrams) manySocketsOnePeer(t *testing.T) {
	d.carries(t, func() exchanged {
		var all sync.WaitGroup
		for i := range 6 {
			all.Go(func() {
				to := d.at(d.h2, i%2 == 1, echoUDP)
				e, err := d.h1.RunApp(t.Context(), "ping-udp", "-to", to.String(), "-count", "100", "-size", "700", "-seed", fmt.Sprint(i),
					fmt.Sprintf("-connected=%v", i%3 == 0))
				if err != nil || e.Failed+e.Lost+e.Late > 0 {
					t.Errorf("client %d: %v %+v", i, err, e)
				}
			})
		}
		all.Wait()
		return exchanged{600, 600}
	})
}

// addresses uses sockets that are bound to a port, to an address, and to the same ones again, and servers that answer
// from the address they were asked at.
func (d *datagrams) addresses(t *testing.T) {
	second := map[*testnet.Host]netip.Addr{}
	for i, h := range []*testnet.Host{d.h1, d.h2} {
		second[h] = netip.AddrFrom4([4]byte{10, 77, 0, byte(101 + i)})
		require.NoError(t, h.AddAddress(netip.PrefixFrom(second[h], 24)))
	}
	families(t, func(t *testing.T, addr func(*testnet.Host, uint16) string) {
		n := 0
		for range 3 { // three sockets with the same addresses and ports
			d.carries(t, func() exchanged {
				n += 20
				bind := addr(d.h1, 9201)
				e := d.ping(t, d.h1, addr(d.h2, echoUDP), "-connected", "-bind", bind, "-count", "20")
				require.Equal(t, bind, e.Local)
				seen(t, d.server, bind)
				return exchanged{20, 20}
			})
		}
		require.Equal(t, n, got(t, d.server, addr(d.h1, 9201)), "each once")
	})
	bind := netip.AddrPortFrom(second[d.h1], 9202).String()
	d.ping(t, d.h1, d.h2.AddrPort4(echoUDP).String(), "-bind", bind, "-count", "20")
	seen(t, d.server, bind)
	to := netip.AddrPortFrom(second[d.h2], echoUDP).String()
	d.ping(t, d.h1, to, "-bind", d.h1.AddrPort4(9203).String(), "-count", "20")
	require.Equal(t, to, seen(t, d.server, d.h1.AddrPort4(9203).String()).Local)
}

// datagramSizes checks that every size arrives whole, and that what needs no fragments is carried.
func (d *datagrams) datagramSizes(t *testing.T) {
	families(t, func(t *testing.T, addr func(*testnet.Host, uint16) string) {
		to, largest := addr(d.h2, echoUDP), 1472
		if v6(to) {
			largest = 1452
		}
		fits := fmt.Sprintf("0,1,2,7,8,24,1000,1024,%d,%d", largest-1, largest)
		for _, connected := range []string{"-connected=true", "-connected=false"} {
			d.carries(t, func() exchanged {
				d.ping(t, d.h1, to, connected, "-count", "100", "-size", fits)
				return exchanged{100, 100}
			})
			d.ping(t, d.h1, to, connected, "-count", "20", "-size", fmt.Sprintf("%d,%d,4000,65507", largest+1, largest+2))
			// Mixed with carried ones.
			d.carries(t, func() exchanged {
				d.ping(t, d.h1, to, connected, "-count", "100", "-size", fmt.Sprintf("%d,9000,0,3000", largest))
				return exchanged{50, 50}
			})
		}
	})
}

// segmented checks UDP_SEGMENT.
func (d *datagrams) segmented(t *testing.T) {
	families(t, func(t *testing.T, addr func(*testnet.Host, uint16) string) {
		for _, connected := range []string{"-connected=true", "-connected=false"} {
			for _, segment := range []string{"100", "1200", "1452"} {
				d.carries(t, func() exchanged {
					d.ping(t, d.h1, addr(d.h2, echoUDP), connected, "-segment", segment, "-burst", "12", "-count", "20")
					return exchanged{240, 240}
				})
			}
		}
	})
}

// closedPort checks that a connected socket learns of a closed port, and an unconnected one does not.
func (d *datagrams) closedPort(t *testing.T) {
	families(t, func(t *testing.T, addr func(*testnet.Host, uint16) string) {
		for range 3 {
			e, err := d.h1.RunApp(patience(t), "ping-udp", "-to", addr(d.h2, deadUDP), "-connected", "-limit", "20s")
			require.NoError(t, err)
			require.Equal(t, map[string]int{"ECONNREFUSED": 1}, e.Errnos, "%+v", e)
		}
		e, err := d.h1.RunApp(patience(t), "ping-udp", "-to", addr(d.h2, deadUDP), "-limit", "100ms", "-patient", "-count", "3")
		require.NoError(t, err)
		require.Equal(t, map[string]int{"TIMEOUT": 3}, e.Errnos, "%+v", e)
	})
}

// serverGoesAndComes checks that a connected socket that was answered learns that its server is gone, and goes on
// once there is another.
func (d *datagrams) serverGoesAndComes(t *testing.T) {
	families(t, func(t *testing.T, addr func(*testnet.Host, uint16) string) {
		to := netip.MustParseAddrPort(addr(d.h2, deadUDP)).String()
		serve := func() *testnet.Proc {
			p, err := d.h2.StartApp("serve-udp", fmt.Sprintf("echo=[::]:%d", deadUDP))
			require.NoError(t, err)
			d.servers = append(d.servers, p)
			return p
		}
		p := serve()
		client, err := d.h1.StartApp("ping-udp", "-to", to, "-connected", "-patient", "-limit", "2s", "-gap", "10ms", "-for", "60s", "-input")
		require.NoError(t, err)
		once, err := p.WaitEvents(patience(t), 1, func(e apps.Event) bool { return e.Event == "peer" })
		require.NoError(t, err)
		time.Sleep(100 * time.Millisecond)
		require.NoError(t, p.Kill())
		_ = p.Wait()
		_, err = client.WaitEvents(patience(t), 3, func(e apps.Event) bool { return e.Event == "lost" && e.Errno == "ECONNREFUSED" })
		require.NoError(t, err)
		p = serve()
		require.Equal(t, once[0].Remote, seen(t, p, once[0].Remote).Remote)
		require.NoError(t, client.CloseInput())
		e := result(t, client)
		require.Zero(t, e.Failed, "%+v", e)
		require.Less(t, e.Errnos["TIMEOUT"], 3, "%+v", e)
		require.NoError(t, p.Kill())
		_ = p.Wait()
	})
}

// rejected checks that what a firewall on the server's host refuses fails with the same error as natively.
func (d *datagrams) rejected(t *testing.T) {
	require.NoError(t, d.h2.NFT(fmt.Sprintf(`table inet filter {
	chain input {
		type filter hook input priority 0; policy accept;
		udp dport %d reject with icmpx type admin-prohibited
	}
}`, sinkUDP)))
	defer func() { require.NoError(t, d.h2.FlushNFT()) }()
	families(t, func(t *testing.T, addr func(*testnet.Host, uint16) string) {
		e, err := d.h1.RunApp(patience(t), "ping-udp", "-to", addr(d.h2, sinkUDP), "-connected", "-limit", "20s")
		require.NoError(t, err)
		want := "EHOSTUNREACH"
		if v6(addr(d.h2, 1)) {
			want = "EACCES"
		}
		require.Equal(t, map[string]int{want: 1}, e.Errnos, "%+v", e)
	})
}

// toAll checks that broadcast and multicast reach every host, as natively.
func (d *datagrams) toAll(t *testing.T) {
	const group4, group6 = "239.77.0.1", "ff15::77"
	for _, h := range []*testnet.Host{d.h2, d.h3} {
		p, err := h.StartApp("serve-udp", fmt.Sprintf("join=%s:%d", group4, deadUDP), fmt.Sprintf("join=[%s]:%d", group6, deadUDP))
		require.NoError(t, err)
		d.servers = append(d.servers, p)
		defer func() {
			require.NoError(t, p.Kill())
			_ = p.Wait()
		}()
	}
	for _, to := range []string{
		fmt.Sprintf("10.77.0.255:%d", echoUDP), fmt.Sprintf("255.255.255.255:%d", echoUDP),
		fmt.Sprintf("%s:%d", group4, deadUDP), fmt.Sprintf("[%s]:%d", group6, deadUDP),
	} {
		var before report.DatagramStats
		if !d.native {
			before = d.g1.udpStats()
		}
		d.ping(t, d.h1, to, "-anyone", "2", "-count", "5", "-device", "eth0", "-size", "200")
		if !d.native {
			require.Equal(t, before.Sent, d.g1.udpStats().Sent, to)
		}
	}
}

// byPort checks that datagrams that no UDP rule selects are left alone, without a trace.
func (d *datagrams) byPort(t *testing.T) {
	p, err := d.h2.StartApp("serve-udp", fmt.Sprintf("echo=[::]:%d", echoPort)) // a rule selects it for TCP
	require.NoError(t, err)
	d.servers = append(d.servers, p)
	families(t, func(t *testing.T, addr func(*testnet.Host, uint16) string) {
		d.leaves(t, func() {
			for _, port := range []uint16{plainUDP, echoPort} {
				d.ping(t, d.h1, addr(d.h2, port), "-count", "50", "-connected")
			}
			d.ping(t, d.h1, addr(d.h3, echoUDP), "-count", "50")
		})
	})
}

// bothBegin uses each host as client and server of the other.
func (d *datagrams) bothBegin(t *testing.T) {
	p := d.serveNumbered(d.h1)
	defer func() {
		require.NoError(t, p.Kill())
		_ = p.Wait()
	}()
	families(t, func(t *testing.T, addr func(*testnet.Host, uint16) string) {
		d.carries(t, func() exchanged {
			var all sync.WaitGroup
			for from, to := range map[*testnet.Host]*testnet.Host{d.h1: d.h2, d.h2: d.h1} {
				all.Go(func() {
					e, err := from.RunApp(t.Context(), "ping-udp", "-to", addr(to, echoUDP), "-count", "200", "-size", "300")
					if err != nil || e.Failed+e.Lost+e.Late > 0 {
						t.Errorf("from %s: %v %+v", from.Name, err, e)
					}
				})
			}
			all.Wait()
			return exchanged{400, 400}
		})
	})
}

// behindFirewalls uses hosts that drop what they have not asked for, where the server's lets this client in.
func (d *datagrams) behindFirewalls(t *testing.T) {
	table := func(more string) string {
		return onSoftPort(`table inet filter {
	chain input {
		type filter hook input priority 0; policy drop;
		iif lo accept
		ct state established,related accept
		icmpv6 type { nd-neighbor-solicit, nd-neighbor-advert } accept
		udp dport { 4790, 4791 } accept
		` + more + `
	}
}`)
	}
	require.NoError(t, d.h1.NFT(table("")))
	require.NoError(t, d.h2.NFT(table(fmt.Sprintf(
		"iifname \"eth0\" ip saddr 10.77.0.1 udp dport %d accept\n\t\tiifname \"eth0\" ip6 saddr fd77::1 udp dport %d accept", echoUDP, echoUDP))))
	defer func() {
		require.NoError(t, d.h1.FlushNFT())
		require.NoError(t, d.h2.FlushNFT())
	}()
	families(t, func(t *testing.T, addr func(*testnet.Host, uint16) string) {
		d.carries(t, func() exchanged {
			d.ping(t, d.h1, addr(d.h2, echoUDP), "-count", "100", "-connected", "-size", "0,1400")
			return exchanged{100, 100}
		})
		// There is no listener, and the firewall does not report that.
		e, err := d.h1.RunApp(patience(t), "ping-udp", "-to", addr(d.h2, deadUDP), "-connected", "-limit", "100ms", "-patient", "-count", "3")
		require.NoError(t, err)
		require.Equal(t, map[string]int{"TIMEOUT": 3}, e.Errnos, "%+v", e)
	})
}
