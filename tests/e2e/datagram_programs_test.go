package e2e

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/lab/apps"
	"github.com/smcgw/smcgw/lab/testnet"
)

// Ports of the UDP programs. The policy of datagramSettings has all but plainUDP.
const (
	dnsPort      = 53 // on the never-list; a rule names it
	echoUDP      = 7100
	sinkUDP      = 7101
	deadUDP      = 7102 // no listener
	plainUDP     = 7103 // not in the policy
	quicPort     = 4433
	sockperfPort = 11111
)

// udpProgram is an unmodified UDP program with its check.
type udpProgram struct {
	name  string
	only4 bool
	serve func(h *testnet.Host) (*testnet.Proc, error)
	// run uses the server from a host and returns at least how many datagrams have arrived.
	run  func(t *testing.T, from *testnet.Host, client netip.Addr, server netip.AddrPort, p *testnet.Proc) exchanged
	port uint16
}

// exchanged counts datagrams that arrived, as the client sees them.
type exchanged struct{ sent, received int64 }

func (x exchanged) plus(y exchanged) exchanged {
	return exchanged{x.sent + y.sent, x.received + y.received}
}

var udpPrograms = []udpProgram{
	{name: "dns", port: dnsPort, run: askDNS, serve: func(h *testnet.Host) (*testnet.Proc, error) {
		records := []string{"address=/www.smcgw.test/192.0.2.80", "address=/www.smcgw.test/2001:db8::80"}
		long := "txt-record=long.smcgw.test"
		for i := range 12 {
			long += "," + strings.Repeat(string(rune('a'+i)), 250)
		}
		return h.DNSServer(dnsPort, append(records, long)...)
	}},
	{name: "iperf3", port: iperfPort, run: runIPerf3, serve: func(h *testnet.Host) (*testnet.Proc, error) {
		return h.IPerf3Server(iperfPort)
	}},
	{name: "sockperf", port: sockperfPort, only4: true, run: runSockperf, serve: func(h *testnet.Host) (*testnet.Proc, error) {
		return h.SockperfServer(sockperfPort)
	}},
	{name: "quic", port: quicPort, run: runQUIC, serve: func(h *testnet.Host) (*testnet.Proc, error) {
		return h.StartApp("serve-quic", fmt.Sprintf("quic=[::]:%d", quicPort))
	}},
	{name: "numbered", port: echoUDP, run: runNumbered, serve: func(h *testnet.Host) (*testnet.Proc, error) {
		return h.StartApp("serve-udp", fmt.Sprintf("echo=[::]:%d", echoUDP))
	}},
}

// askDNS asks dnsmasq, which logs the source of every query.
func askDNS(t *testing.T, from *testnet.Host, client netip.Addr, server netip.AddrPort, p *testnet.Proc) exchanged {
	ctx := patience(t)
	var x exchanged
	for range 5 {
		for kind, want := range map[string]string{"A": "192.0.2.80", "AAAA": "2001:db8::80"} {
			got, err := from.Dig(ctx, server, "www.smcgw.test", kind)
			require.NoError(t, err)
			require.Equal(t, want, got)
			x = x.plus(exchanged{1, 1})
		}
	}
	got, err := from.Dig(ctx, server, "nobody.example", "A", "+noshort", "+comments")
	require.NoError(t, err)
	require.Contains(t, got, "status: REFUSED")
	require.NoError(t, p.WaitOutput(ctx, "query[AAAA] www.smcgw.test from "+client.String()))
	// The answer takes three packets into which the server's kernel fragments it.
	got, err = from.Dig(ctx, server, "long.smcgw.test", "TXT")
	require.NoError(t, err)
	require.Contains(t, got, strings.Repeat("l", 250))
	return x.plus(exchanged{2, 1})
}

func runIPerf3(t *testing.T, from *testnet.Host, _ netip.Addr, server netip.AddrPort, _ *testnet.Proc) exchanged {
	var x exchanged
	for _, args := range [][]string{
		{"-b", "1M", "-l", "200", "-n", "40K"},
		{"-b", "200M", "-l", "1400", "-n", "8M"},
		{"-R", "-b", "1M", "-l", "200", "-n", "40K"},
		{"-R", "-b", "200M", "-l", "1400", "-n", "8M"},
	} {
		r := iperf3(t, from, server, args)
		// On busy processors a server does not read for a while, and loses datagrams natively, too.
		require.Positive(t, r.Packets-r.Lost, "%v: %+v", args, r)
		t.Logf("%v: %+v", args, r)
		if args[0] == "-R" {
			x.received += r.Packets - r.Lost
		} else {
			x.sent += r.Packets - r.Lost
		}
	}
	return x
}

// iperf3 runs iperf3 over UDP. Its server takes the first datagram for one of the run that its TCP connection has
// announced. On a machine without a processor to spare it can be one of the run before, which TCP has overtaken in a
// queue of the gateway; the client then waits for an answer for ever. So iperf3 tries again.
func iperf3(t *testing.T, from *testnet.Host, server netip.AddrPort, args []string) (r testnet.IPerf3) {
	t.Helper()
	var err error
	for range 5 {
		ctx, cancel := context.WithTimeout(t.Context(), 15*time.Second)
		r, err = from.IPerf3(ctx, server, append([]string{"-u"}, args...)...)
		cancel()
		if err == nil {
			return r
		}
		t.Logf("%v: %v", args, err)
	}
	require.NoError(t, err, "%v", args)
	return r
}

func runSockperf(t *testing.T, from *testnet.Host, _ netip.Addr, server netip.AddrPort, _ *testnet.Proc) exchanged {
	r, err := from.Sockperf(patience(t), server, "-t", "1", "-m", "64")
	require.NoError(t, err)
	require.Positive(t, r.Received)
	require.Zero(t, r.Dropped+r.Duplicated+r.OutOfOrder, "%+v", r)
	t.Logf("%+v", r)
	return exchanged{r.Sent, r.Received}
}

func runQUIC(t *testing.T, from *testnet.Host, client netip.Addr, server netip.AddrPort, p *testnet.Proc) exchanged {
	return moveQUIC(t, 2_000_000, from, client, server, p)
}

func moveQUIC(t *testing.T, size int64, from *testnet.Host, client netip.Addr, server netip.AddrPort, p *testnet.Proc) exchanged {
	e, err := from.RunApp(patience(t), "get-quic", "-to", server.String(), "-count", "3", "-size", fmt.Sprint(size))
	require.NoError(t, err)
	require.Zero(t, e.Failed, "%+v", e)
	_, err = p.WaitEvents(patience(t), 1, func(s apps.Event) bool {
		return s.Event == "accepted" && netip.MustParseAddrPort(s.Remote).Addr().Unmap() == client
	})
	require.NoError(t, err)
	t.Logf("3 times %d bytes there and back: the median %d us", size, e.MedianMicros)
	return exchanged{3 * size / 1300, 3 * size / 1300}
}

func runNumbered(t *testing.T, from *testnet.Host, client netip.Addr, server netip.AddrPort, p *testnet.Proc) exchanged {
	var x exchanged
	for _, connected := range []string{"-connected=true", "-connected=false"} {
		e, err := from.RunApp(patience(t), "ping-udp", "-to", server.String(), "-count", "500", "-size", "0,1,64,1000,1400", connected)
		require.NoError(t, err)
		require.Zero(t, e.Failed+e.Lost+e.Late, "%+v", e)
		peer, err := p.WaitEvents(patience(t), 1, func(s apps.Event) bool {
			return s.Event == "peer" && netip.MustParseAddrPort(s.Remote).Port() == netip.MustParseAddrPort(e.Local).Port()
		})
		require.NoError(t, err)
		require.Equal(t, client, netip.MustParseAddrPort(peer[0].Remote).Addr())
		require.Equal(t, server.String(), peer[0].Local)
		require.Equal(t, "eth0", peer[0].Device)
		x = x.plus(exchanged{500, 500})
	}
	require.Empty(t, aliens(p))
	return x
}

// aliens returns the datagrams that a server got but no app sent.
func aliens(p *testnet.Proc) (found []apps.Event) {
	for _, e := range p.Events() {
		if e.Event == "alien" {
			found = append(found, e)
		}
	}
	return found
}

// serveAll starts the server of every program on a host.
func serveAll(t *testing.T, h *testnet.Host) map[string]*testnet.Proc {
	t.Helper()
	testnet.Require(t, "dnsmasq", "dig", "iperf3", "sockperf")
	procs := map[string]*testnet.Proc{}
	for _, p := range udpPrograms {
		proc, err := p.serve(h)
		require.NoError(t, err)
		procs[p.name] = proc
	}
	return procs
}

// eachProgram runs every program from one host to another over both families.
func eachProgram(t *testing.T, from, to *testnet.Host, procs map[string]*testnet.Proc, check func(t *testing.T, p udpProgram, server netip.AddrPort, run func() exchanged)) {
	for _, p := range udpPrograms {
		t.Run(p.name, func(t *testing.T) {
			families(t, func(t *testing.T, addr func(*testnet.Host, uint16) string) {
				server := netip.MustParseAddrPort(addr(to, p.port))
				if p.only4 && !server.Addr().Is4() {
					return
				}
				client := netip.MustParseAddrPort(addr(from, 1)).Addr()
				check(t, p, server, func() exchanged { return p.run(t, from, client, server, procs[p.name]) })
			})
		})
	}
}

// allPrograms runs every program at the same time.
func allPrograms(t *testing.T, from, to *testnet.Host) {
	t.Helper()
	procs := serveAll(t, to)
	t.Run("programs", func(t *testing.T) {
		for _, p := range udpPrograms {
			t.Run(p.name, func(t *testing.T) {
				t.Parallel()
				families(t, func(t *testing.T, addr func(*testnet.Host, uint16) string) {
					server := netip.MustParseAddrPort(addr(to, p.port))
					if !p.only4 || server.Addr().Is4() {
						p.run(t, from, hostOf(addr(from, 1)), server, procs[p.name])
					}
				})
			})
		}
	})
}
