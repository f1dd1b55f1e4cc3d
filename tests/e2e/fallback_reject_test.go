package e2e

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/lab/apps"
	"github.com/smcgw/smcgw/lab/testnet"
)

// soon is more than a round trip and two ticks of a kernel, however busy the machine,
// and less than the second after which the kernel sends a lost SYN again.
const soon = 800 * time.Millisecond

// rejecting is a world whose second host is a router with a firewall, and has the
// server with its gateway behind it.
type rejecting struct {
	*world
	inner *testnet.Host
	g1    *gw
	g2    *gw
}

func newRejecting(t *testing.T) *rejecting {
	w := newWorld(t, testnet.Config{})
	inner, err := w.net.Behind(w.h2, "inner")
	require.NoError(t, err)
	w.serve(inner)
	return &rejecting{world: w, inner: inner, g1: w.up(w.h1, settings{}), g2: w.up(inner, settings{})}
}

// box adds a rule to what the router forwards.
func (w *rejecting) box(t *testing.T, rule string) {
	t.Helper()
	require.NoError(t, w.h2.NFT("table inet box {\nchain forward { type filter hook forward priority 0;\n"+rule+"\n}\n}"))
	t.Cleanup(func() { require.NoError(t, w.h2.FlushNFT()) })
}

// carried makes connections until one is carried: a rest is over within seconds.
func (w *rejecting) carried(t *testing.T, to string) {
	t.Helper()
	e := w.carriedSoon(t, to, 30*time.Second)
	require.Equal(t, w.via, w.g2.closedConn(at(e)).Carrier)
}

// quickly asserts that a connection took no longer than its network.
func quickly(t *testing.T, e apps.Event) {
	t.Helper()
	t.Logf("connect() took %d µs, SYNs repeated: %d", max(e.ConnectMicros, e.Micros*int64(e.Failed)), e.Repeated)
	require.Less(t, time.Duration(max(e.ConnectMicros, e.Micros))*time.Microsecond, soon, "%+v", e)
}

// TestFallbackBoxRejects: a box on the way answers SYNs with the option by a reset or
// an ICMP error. Applications do not see it: the first connection costs a round trip
// more, the next ones nothing, and they are carried again when the box is gone.
func TestFallbackBoxRejects(t *testing.T) {
	t.Parallel()
	w := newRejecting(t)
	for name, with := range map[string]string{
		"reset":      "tcp reset",
		"prohibited": "icmpx type admin-prohibited",
		"port":       "icmpx type port-unreachable",
		"host":       "icmpx type host-unreachable",
	} {
		t.Run(name, func(t *testing.T) {
			families(t, func(t *testing.T, addr func(*testnet.Host, uint16) string) {
				w.flush()
				w.box(t, "tcp flags syn tcp option 254 exists reject with "+with)
				to := addr(w.inner, echoPort)
				f := fallback{w: w.world, t: t, from: w.h1, to: to, client: remote("option_rejected")}
				for i := range 3 {
					before := w.totals()
					e := w.mustApp(w.h1, "ping", "-count", "3", "-size", "20000", "-to", to)
					require.EqualValues(t, 60000, e.Received)
					quickly(t, e)
					require.Equal(t, map[bool]int{true: 1}[i == 0], e.Repeated, "only the first is asked again")
					f.check(e, before)
				}
				p, ok := w.g1.peer(hostOf(to), 0)
				require.True(t, ok)
				require.Equal(t, "option_rejected", p.Reason)
				require.Equal(t, report.PeerIncapable, p.State)
				require.LessOrEqual(t, p.ExpiresSeconds, 5.0)
				require.NoError(t, w.h2.FlushNFT())
				w.carried(t, to)
			})
		})
	}
}

// TestFallbackClosedPort: a host that refuses connections does so at once, with the
// option or without, and the first connection that succeeds ends what was remembered.
func TestFallbackClosedPort(t *testing.T) {
	t.Parallel()
	w := newRejecting(t)
	for _, c := range []struct{ name, rule, v4, v6 string }{
		{"closed", "", "ECONNREFUSED", "ECONNREFUSED"},
		{"firewall", "tcp dport 7099 reject with icmpx type admin-prohibited", "EHOSTUNREACH", "EACCES"},
	} {
		t.Run(c.name, func(t *testing.T) {
			families(t, func(t *testing.T, addr func(*testnet.Host, uint16) string) {
				w.flush()
				w.box(t, c.rule)
				to, errno := addr(w.inner, deadPort), c.v4
				if to[0] == '[' {
					errno = c.v6
				}
				before := w.totals()
				for i := range 2 {
					e, err := w.app(w.h1, 20*time.Second, "connect", "-timeout", "10s", "-to", to)
					require.NoError(t, err)
					require.Equal(t, 1, e.Failed, "%+v", e)
					require.Equal(t, errno, e.Errno, "%+v", e)
					if i == 0 || c.rule == "" { // a kernel misses ICMP errors that come before connect() sleeps
						quickly(t, e)
					}
					p, ok := w.g1.peer(hostOf(to), 0)
					require.False(t, ok, "nothing is said about the path: %+v", p)
					p, ok = w.g1.peer(hostOf(to), deadPort)
					require.True(t, ok || i > 0)
					require.True(t, !ok || p.Reason == "peer_refused", p.Reason)
				}
				w.g1.counts(t, before[w.h1], map[string]uint64{"peer_refused": 1})

				require.NoError(t, w.h2.FlushNFT())
				server := w.listen(w.inner, "echo", deadPort)
				e := w.mustApp(w.h1, "ping", "-to", to)
				_, ok := w.g1.peer(hostOf(to), deadPort)
				require.False(t, ok, "%+v", e)
				e = w.mustApp(w.h1, "ping", "-to", to)
				require.Equal(t, w.via, w.g1.closedConn(from(e)).Carrier)
				require.NoError(t, server.Kill())
				<-server.Done()
			})
		})
	}
}

// counts asserts how often connections have fallen back, by reason.
func (g *gw) counts(t *testing.T, before report.Status, want map[string]uint64) {
	t.Helper()
	require.Equal(t, want, fallbacksSince(before, g.status()))
}
