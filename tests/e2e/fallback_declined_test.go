package e2e

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/lab/apps"
	"github.com/smcgw/smcgw/lab/testnet"
)

// Ports of TestFallbackFirewall, by what the server's firewall does to them.
const (
	resetPort       = 7110 // answers RST
	prohibitPort    = 7111 // answers ICMP
	swallowPort     = 7112 // answers nothing
	impatience      = 800 * time.Millisecond
	firewalledPorts = "7110, 7111, 7112"
)

// TestFallbackFirewall checks connections that the server's firewall refuses although its application would take
// them. The client's application must see what it sees without gateways, and both gateways must know that the
// server's could not reach its application.
func TestFallbackFirewall(t *testing.T) {
	t.Parallel()
	w := newServed(t)
	w.listen(w.h2, "echo", resetPort, prohibitPort, swallowPort)
	require.NoError(t, w.h2.NFT(fmt.Sprintf(`table inet filter {
	chain input {
		type filter hook input priority 0; policy accept;
		iifname "eth0" tcp dport %d reject with tcp reset
		iifname "eth0" tcp dport %d reject with icmpx admin-prohibited
		iifname "eth0" tcp dport %d drop
	}
}`, resetPort, prohibitPort, swallowPort)))
	for _, h := range []*testnet.Host{w.h1, w.h2} {
		w.up(h, settings{Ports: firewalledPorts + ", 7000", Handshake: "480ms"})
	}
	// An ICMP error that comes while connect() still holds the socket is only a soft error, so give it the time that
	// it has in real networks.
	w.box(t, testnet.Box{Delay: time.Millisecond})
	own := uint16(20000)
	families(t, func(t *testing.T, addr func(*testnet.Host, uint16) string) {
		for port, reason := range map[uint16]string{
			resetPort: "app_refused", prohibitPort: "app_unreachable", swallowPort: "app_unreachable",
		} {
			to, limit := addr(w.h2, port), slack
			if port == swallowPort {
				limit = impatience
			}
			natively, err := w.app(w.h3, 3*slack, "connect", "-timeout", limit.String(), "-to", to)
			require.NoError(t, err)
			require.Equal(t, 1, natively.Failed, "%+v", natively)

			f := fallback{w: w, t: t, from: w.h1, to: to, client: remote(reason), server: local(reason)}
			if reason == "app_unreachable" { // known only at the deadline, which is an eighth before the client's
				f.client, f.server = f.client.or(local("handshake_timeout")), f.server.or(remote("handshake_timeout"))
			}
			require.True(t, w.inTime(func() bool {
				own++
				from := netip.AddrPortFrom(hostOf(addr(w.h1, 1)), own)
				before := w.totals()
				e, err := w.app(w.h1, 3*slack, "connect", "-timeout", limit.String(), "-bind", from.String(), "-to", to)
				require.NoError(t, err)
				e.Local = from.String()
				if f.foundLate(e) {
					return false
				}
				require.Equal(t, natively.Errno, e.Errno, "port %d: %+v", port, e)
				f.check(e, before)
				return true
			}))
		}
		w.carried(t, w.h1, addr(w.h2, echoPort))
	})
}

// TestFallbackRemembered checks that a service that refused is native from the second connection on, without another
// offer, until the refusal is forgotten, and that the host's other services are not affected.
func TestFallbackRemembered(t *testing.T) {
	t.Parallel()
	w := newServed(t)
	w.up(w.h1, settings{Carriers: "shm", NegativeCache: refusalLasts.String()})
	w.up(w.h2, settings{Carriers: " "})
	families(t, func(t *testing.T, addr func(*testnet.Host, uint16) string) {
		to, other := addr(w.h2, echoPort), addr(w.h2, plainPort)
		first := fallback{w: w, t: t, from: w.h1, to: to, client: remote("no_common_carrier"), server: local("no_common_carrier")}

		require.True(t, w.inTime(first.remembered))
		fallback{w: w, t: t, from: w.h1, to: other, client: local("policy")}.ping()

		w.flush()
		_, ok := w.gateways[w.h1].peer(hostOf(to), echoPort)
		require.False(t, ok)
		first.ping()
		require.Eventually(t, func() bool {
			_, ok := w.gateways[w.h1].peer(hostOf(to), echoPort)
			return !ok
		}, 30*time.Second, 50*time.Millisecond, "the refusal is forgotten")
		first.ping()
	})
}

// runsOut makes a connection after whose acceptance nothing arrives from a host. It returns false if a gateway was late.
func (f fallback) runsOut(silent *testnet.Host) bool {
	t, w := f.t, f.w
	t.Helper()
	w.flush()
	before := w.totals()
	w.box(t, testnet.Box{DropRest: true, Port: echoPort}, silent)
	p, err := w.h1.StartApp("hold", "-to", f.to)
	require.NoError(t, err)
	connected, err := p.WaitEvents(patience(t), 1, func(e apps.Event) bool { return e.Event == "connected" })
	require.NoError(t, err)
	took := time.Duration(connected[0].Micros) * time.Microsecond
	t.Logf("native after %v", took)
	require.NoError(t, w.net.SetBox(testnet.Box{}))
	e := pinged(t, p)
	leaves(t, p)
	if f.foundLate(e) {
		return false
	}
	require.GreaterOrEqual(t, took, 200*time.Millisecond, "the deadline of the configuration")
	f.check(e, before)
	return true
}

// refusalLasts is how long a refusal is remembered in TestFallbackRemembered.
const refusalLasts = 6 * time.Second

// remembered makes a connection that the peer refuses, and others while that is remembered. It returns false if a gateway was
// late, or if the last ones came when the refusal was forgotten.
func (f fallback) remembered() bool {
	f.t.Helper()
	f.until = time.Now().Add(refusalLasts)
	f.ping()
	p, ok := f.w.gateways[f.from].peer(hostOf(f.to), echoPort)
	if !ok && f.forgotten() {
		return false
	}
	require.True(f.t, ok, "the refusal is listed")
	require.Equal(f.t, report.PeerIncapable, p.State)
	require.Equal(f.t, "no_common_carrier", p.Reason)
	require.InDelta(f.t, refusalLasts.Seconds()/2, p.ExpiresSeconds, refusalLasts.Seconds()/2)
	offers := f.w.offers()
	f.client, f.server = local("no_common_carrier"), nothing
	for range 3 {
		if f.once() {
			return false
		}
	}
	require.Equal(f.t, offers, f.w.offers())
	return true
}

// TestFallbackDeadline checks connections after whose acceptance nothing arrives any more from the server's gateway,
// or from the client's. The client's gateway must fall back by itself, and the connection must work as soon as the
// path does.
func TestFallbackDeadline(t *testing.T) {
	t.Parallel()
	w := newServed(t)
	w.upBoth(settings{Handshake: quick})
	for _, c := range []struct {
		name   string
		silent *testnet.Host
		server told
	}{
		// Without acknowledgements the reset may overtake the reason. The server's dial has the same deadline less an
		// eighth: on a busy machine there is no time between the two.
		{"silent server", w.h2, remote("handshake_timeout").or(remote("client_gone")).or(local("app_unreachable"))},
		{"silent client", w.h1, nothing}, // a SYN-ACK without an answer is not remembered
	} {
		t.Run(c.name, func(t *testing.T) {
			families(t, func(t *testing.T, addr func(*testnet.Host, uint16) string) {
				f := fallback{w: w, t: t, from: w.h1, to: addr(w.h2, echoPort), client: local("handshake_timeout"), server: c.server}
				require.True(t, w.inTime(func() bool { return f.runsOut(c.silent) }))
			})
		})
	}
}
