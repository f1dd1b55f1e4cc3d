package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/lab/apps"
	"github.com/smcgw/smcgw/lab/testnet"
	"github.com/smcgw/smcgw/negotiate"
)

// TestSemanticsOfConnectErrors checks that connect() to a host with a gateway fails as to the plain one, with the
// same errno after about the same time, whichever host refuses.
func TestSemanticsOfConnectErrors(t *testing.T) {
	t.Parallel()
	const (
		listening = iota // nothing refuses
		reset            // a firewall resets
		reject           // a firewall answers host unreachable
		dropped          // a firewall answers nothing
		absent           // no such host
	)
	const retried = 2900 * time.Millisecond // a SYN and one retransmission got no answer
	w := newWorld(t, testnet.Config{})
	for _, h := range []*testnet.Host{w.h2, w.h3} {
		w.listenAll(h, ownPort+reset, ownPort+reject, ownPort+dropped)
		require.NoError(t, h.NFT(fmt.Sprintf(`table inet filter {
	chain input {
		type filter hook input priority 0; policy accept;
		tcp dport %d reject with tcp reset
		meta nfproto ipv4 tcp dport %d reject with icmp host-unreachable
		meta nfproto ipv6 tcp dport %d reject with icmpv6 addr-unreachable
		tcp dport %d drop
	}
}`, ownPort+reset, ownPort+reject, ownPort+reject, ownPort+dropped)))
	}
	for _, sysctl := range []string{"net.ipv4.neigh.eth0.mcast_solicit", "net.ipv6.neigh.eth0.mcast_solicit"} {
		require.NoError(t, w.h1.SetSysctl(sysctl, "1"))
	}
	require.NoError(t, w.h1.SetSysctl("net.ipv4.tcp_syn_retries", "1"))
	w.upBoth(quickSettings())
	absent4, absent6 := netip.MustParseAddr("10.77.0.77"), netip.MustParseAddr("fd77::77")

	type attempt struct {
		name            string
		args            []string
		carried, native netip.AddrPort
		errno           string
		got             [2]apps.Event
	}
	var attempts []*attempt
	for _, sc := range []struct {
		name  string
		kind  uint16
		errno string
	}{
		{"nobody listens", listening, "ECONNREFUSED"},
		{"firewall resets", reset, "ECONNREFUSED"},
		{"firewall rejects", reject, "EHOSTUNREACH"},
		{"firewall drops", dropped, "ETIMEDOUT"},
		{"no such host", absent, "EHOSTUNREACH"},
	} {
		port := ownPort + sc.kind
		v4 := &attempt{name: "ipv4/" + sc.name, errno: sc.errno, carried: w.h2.AddrPort4(port), native: w.h3.AddrPort4(port)}
		v6 := &attempt{name: "ipv6/" + sc.name, errno: sc.errno, carried: w.h2.AddrPort6(port), native: w.h3.AddrPort6(port)}
		if sc.kind == absent {
			v4.carried, v4.native = netip.AddrPortFrom(absent4, port), netip.AddrPortFrom(absent4, plainPort)
			v6.carried, v6.native = netip.AddrPortFrom(absent6, port), netip.AddrPortFrom(absent6, plainPort)
		}
		mapped := *v4
		mapped.name, mapped.args = "mapped/"+sc.name, []string{"-mapped"}
		attempts = append(attempts, v4, v6, &mapped)
	}
	var all sync.WaitGroup
	for _, a := range attempts {
		for i, to := range []netip.AddrPort{a.carried, a.native} {
			all.Go(func() {
				e, err := w.app(w.h1, time.Minute, append([]string{"connect", "-to", to.String()}, a.args...)...)
				if err != nil {
					e.Error = err.Error()
				}
				a.got[i] = e
			})
		}
	}
	all.Wait()
	for _, a := range attempts {
		t.Run(a.name, func(t *testing.T) {
			carried, native := a.got[0], a.got[1]
			require.Equal(t, a.errno, native.Errno, "%+v", native)
			require.Equal(t, native.Errno, carried.Errno, "%+v", carried)
			// The handshake may take its time before the connection is native. An ICMP error may find the socket
			// locked, and then counts only a second later.
			took := func(e apps.Event) time.Duration { return time.Duration(e.Micros) * time.Microsecond }
			require.Less(t, took(carried), took(native)+10*time.Second)
			if a.errno == "ETIMEDOUT" {
				require.Greater(t, took(carried), retried, "%+v", native)
			}
		})
	}
	w.quiet(t)
}

// listenAll keeps ports of a host in LISTEN without accepting.
func (w *world) listenAll(h *testnet.Host, ports ...uint16) {
	w.t.Helper()
	for _, p := range ports {
		ln, err := h.Listen("tcp", fmt.Sprintf("[::]:%d", p))
		require.NoError(w.t, err)
		w.t.Cleanup(func() { _ = ln.Close() })
	}
}

// TestSemanticsOfGivingUp checks that applications that stop connecting half-way, by a timeout of their own or by
// kill -9, leave nothing behind, and that the next connection on their tuple works.
func TestSemanticsOfGivingUp(t *testing.T) {
	t.Parallel()
	w := newServed(t)
	w.listenAll(w.h2, ownPort)
	require.NoError(t, w.h2.NFT(fmt.Sprintf(`table inet filter {
	chain input { type filter hook input priority 0; policy accept; tcp dport %d drop; }
}`, ownPort)))
	w.upBoth(ownSettings())
	families(t, func(t *testing.T, addr func(*testnet.Host, uint16) string) {
		var all sync.WaitGroup
		local := strings.TrimSuffix(addr(w.h1, 1), "1")
		// To a server that answers, at every point of the handshake; and to one whose application is never reached.
		for i := range 24 {
			all.Go(func() {
				to := addr(w.h2, echoPort)
				if i%4 == 3 {
					to = addr(w.h2, ownPort)
				}
				timeout := time.Duration(1+i*i) * 200 * time.Microsecond
				e, err := w.app(w.h1, time.Minute, "connect", "-timeout", timeout.String(),
					"-bind", fmt.Sprintf("%s%d", local, 30000+i), "-to", to)
				if err != nil || e.Failed > 0 && e.Errno != "GAVE_UP" {
					t.Errorf("%s: %+v %v", timeout, e, err)
				}
			})
		}
		for i := range 12 {
			all.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				cmd := w.h1.AppCommand(ctx, "connect", "-gap", "10s", "-to", addr(w.h2, echoPort),
					"-bind", fmt.Sprintf("%s%d", local, 30100+i))
				p, err := w.h1.StartCmd(cmd)
				if err != nil {
					t.Error(err)
					return
				}
				time.Sleep(time.Duration(8+2*i) * time.Millisecond)
				_ = p.Kill()
				_ = p.Wait()
			})
		}
		all.Wait()
		for _, port := range []int{30000, 30001, 30011, 30023, 30100, 30111} {
			e := w.mustApp(w.h1, "ping", "-bind", fmt.Sprintf("%s%d", local, port), "-to", addr(w.h2, echoPort))
			require.Equal(t, 1, e.OK)
		}
		w.carriedApp(t, w.h1, "ping", "-count", "10", "-to", addr(w.h2, echoPort))
	})
	w.quiet(t)
}

// TestSemanticsOfAddresses checks that getsockname, getpeername, accept() and ss report the true addresses on both
// hosts.
func TestSemanticsOfAddresses(t *testing.T) {
	t.Parallel()
	w := newWorld(t, testnet.Config{})
	server := w.serve(w.h2)
	w.upBoth(ownSettings())
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	for name, tc := range map[string]struct {
		args []string
		to   netip.AddrPort
		from netip.Addr
	}{
		"ipv4":   {nil, w.h2.AddrPort4(echoPort), w.h1.Addr4},
		"ipv6":   {nil, w.h2.AddrPort6(echoPort), w.h1.Addr6},
		"mapped": {[]string{"-mapped"}, w.h2.AddrPort4(echoPort), w.h1.Addr4},
	} {
		t.Run(name, func(t *testing.T) {
			hold := append([]string{"hold", "-to", tc.to.String()}, tc.args...)
			p, e := w.heldInTime(t, func() (*testnet.Proc, apps.Event) {
				p, err := w.h1.StartApp(hold...)
				require.NoError(t, err)
				connected, err := p.WaitEvents(ctx, 1, func(e apps.Event) bool { return e.Event == "connected" })
				require.NoError(t, err)
				return p, connected[0]
			})
			require.Equal(t, tc.to.String(), e.Remote, "getpeername of the client")
			local := netip.MustParseAddrPort(e.Local)
			require.Equal(t, tc.from, local.Addr(), "getsockname of the client")
			accepted, err := server.WaitEvents(ctx, 1, func(s apps.Event) bool { return s.Event == "accepted" && s.Remote == e.Local })
			require.NoError(t, err)
			require.Equal(t, e.Remote, accepted[0].Local, "getsockname of the server")

			require.Equal(t, 1, w.established(t, w.h1, local, tc.to), "ss at the client")
			require.Equal(t, 1, w.established(t, w.h2, tc.to, local), "ss at the server")
			pings(t, p, 1)
			require.NoError(t, p.CloseInput())
			w.carriedBy(e, w.via)
		})
	}
}

// established counts the lines of ss for the application's end of a connection.
func (w *world) established(t *testing.T, h *testnet.Host, local, remote netip.AddrPort) int {
	t.Helper()
	return w.inState(t, h, "established", local, remote)
}

// inState is established for another state.
func (w *world) inState(t *testing.T, h *testnet.Host, state string, local, remote netip.AddrPort) int {
	t.Helper()
	out, err := h.Run(t.Context(), "ss", "-tnH", "state", state)
	require.NoError(t, err)
	n := 0
	for line := range strings.Lines(strings.ReplaceAll(out, "[::ffff:", "[")) {
		f := strings.Fields(line)
		if len(f) >= 4 && unbracket(f[2]) == local && unbracket(f[3]) == remote {
			n++
		}
	}
	return n
}

// unbracket parses an address from ss, which writes a mapped one as [10.77.0.1]:7000.
func unbracket(s string) netip.AddrPort {
	ap, err := netip.ParseAddrPort(s)
	if err != nil {
		ap, _ = netip.ParseAddrPort(strings.NewReplacer("[", "", "]", "").Replace(s))
	}
	return ap
}

// TestSemanticsOfReuse checks that a connection on a tuple that was just in use begins as soon as natively, however
// the last one ended. If both gateways have seen the end of the last one, it must be carried, too.
func TestSemanticsOfReuse(t *testing.T) {
	t.Parallel()
	w := newWorld(t, testnet.Config{})
	// Natively the side that closes first keeps the tuple for a while. With this setting a client may reuse it after
	// a second.
	require.NoError(t, w.h1.SetSysctl("net.ipv4.tcp_tw_reuse", "1"))
	w.up(w.h1, ownSettings())
	g := w.up(w.h2, ownSettings())
	const second = 1100 * time.Millisecond
	for i, tc := range []struct {
		name   string
		rounds int
		pause  time.Duration
		end    func(p *pair) string
		want   string
	}{
		{"client resets", 8, 0, clientResets, "0 bytes, ECONNRESET"},
		{"client has reset", 4, moment / 2, clientResets, "0 bytes, ECONNRESET"},
		{"server resets", 8, 0, serverResets, "0 bytes, ECONNRESET"},
		{"server has reset", 4, moment / 2, serverResets, "0 bytes, ECONNRESET"},
		{"server closes", 8, 0, serverCloses, "0 bytes, EOF"},
		{"server has closed", 4, moment / 2, serverCloses, "0 bytes, EOF"},
		{"client has closed", 2, second, clientCloses, "0 bytes, EOF"},
	} {
		for family, at := range map[string]func(*testnet.Host, uint16) netip.AddrPort{
			"ipv4": (*testnet.Host).AddrPort4, "ipv6": (*testnet.Host).AddrPort6,
		} {
			t.Run(family+"/"+tc.name, func(t *testing.T) {
				again := func(h *testnet.Host) (retries int) {
					ln, err := h.Listen("tcp", at(h, ownPort).String())
					require.NoError(t, err)
					defer ln.Close()
					for range tc.rounds {
						var p *pair
						// The kernel keeps the tuple until the last FIN is acknowledged: over a network a round trip, here until
						// the gateway has a processor.
						// It does so for a second if it is the client's side that waits.
						local, remote, kept := at(w.h1, uint16(31000+i)), at(h, ownPort), time.Time{}
						var begun time.Time
						for end := time.Now().Add(slack); ; time.Sleep(time.Millisecond) {
							begun = time.Now()
							if p, err = dialPair(w.h1, ln, remote, local); !errors.Is(err, unix.EADDRNOTAVAIL) {
								break
							}
							require.True(t, time.Now().Before(end), "the tuple stays in use")
							if kept.IsZero() && w.inState(t, w.h1, "time-wait", local, remote) > 0 {
								kept = time.Now()
							}
							require.True(t, kept.IsZero() || time.Since(kept) < moment+tc.pause, "the client waits")
						}
						require.NoError(t, err)
						// The kernel sends a SYN again after a second. One whose offer the end of the connection before has refused is
						// sent again at once, and nobody waits.
						if time.Since(begun) > 900*time.Millisecond {
							retries += int(tcpInfo(p.c).Total_retrans)
						}
						require.NoError(t, send(p.c, 100))
						require.Equal(t, "100 bytes, ok", readN(p.s, 100))
						require.Equal(t, tc.want, tc.end(p))
						p.close()
						time.Sleep(tc.pause)
					}
					return retries
				}
				native := again(w.h3)
				before, shed := g.status().FlowsTotal[w.via], w.shed()
				retries := again(w.h2)
				busy := w.shed() - shed
				require.LessOrEqual(t, retries, native+busy, "SYNs that were sent again, but for a busy host")
				carried := int(g.status().FlowsTotal[w.via] - before)
				if tc.pause == 0 {
					require.Positive(t, carried)
				} else {
					require.LessOrEqual(t, carried, tc.rounds)
					require.GreaterOrEqual(t, carried+busy, tc.rounds, "carried, or native because a host is busy")
				}
			})
		}
	}
	w.quiet(t)
}

// shed counts the connections that a host left native because it or the other was busy or stood still. What the server's
// left so, the client's only knows as one without an answer to its offer.
func (w *world) shed() (n int) {
	reasons := w.gateways[w.h1].status().FallbacksTotal
	n = int(w.gateways[w.h2].status().FallbacksTotal[gatewayStale])
	for _, r := range []negotiate.Reason{
		negotiate.ReasonGatewayStale, negotiate.ReasonRateLimit, negotiate.ReasonHandshakeTimeout,
		negotiate.ReasonOfferUnanswered, negotiate.ReasonProposalLate,
	} {
		n += int(reasons[r.String()])
	}
	return n
}

func clientResets(p *pair) string {
	_ = p.c.SetLinger(0)
	_ = p.c.Close()
	return receive(p.s)
}

func serverResets(p *pair) string {
	_ = p.s.SetLinger(0)
	_ = p.s.Close()
	return receive(p.c)
}

func serverCloses(p *pair) string {
	_ = p.s.Close()
	return receive(p.c)
}

func clientCloses(p *pair) string {
	_ = p.c.Close()
	return receive(p.s)
}
