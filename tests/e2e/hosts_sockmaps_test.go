package e2e

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/lab/sockmap"
	"github.com/smcgw/smcgw/lab/testnet"
)

// sockmaps are hosts on which eBPF programs shorten the path between sockets of the host, or look at what its servers
// receive. Their maps have all sockets of the host, also the gateway's.
func sockmaps() []hostKind {
	return []hostKind{
		{name: "sockmapredirect", sides: anySide, build: func(c *hostCell) []target {
			return c.withSockmap(sockmap.Redirect, func(h *testnet.Host, seen sockmap.Counters) {
				require.NotZero(c.t, seen.Sent, h.Name)
				if h == c.h1 { // it has a client and its server
					require.NotZero(c.t, seen.Redirected)
				}
			})
		}},
		{name: "sockmapverdict", sides: anySide, build: func(c *hostCell) []target {
			return c.withSockmap(sockmap.Watch, func(h *testnet.Host, seen sockmap.Counters) {
				require.NotZero(c.t, seen.Sent, h.Name)
				require.NotZero(c.t, seen.Received, h.Name)
			})
		}},
	}
}

// withSockmap puts everything that is started on the hosts from now on into control groups with such programs. used
// checks what these have done without gateways.
func (c *hostCell) withSockmap(attach func(string) (*sockmap.Programs, error), used func(*testnet.Host, sockmap.Counters)) []target {
	c.t.Helper()
	for _, h := range c.those() {
		group := group(c.t)
		p, err := attach(group.Path)
		require.NoError(c.t, err)
		h.Within(group)
		c.t.Cleanup(func() {
			require.NoError(c.t, p.Close())
			require.NoError(c.t, group.Kill()) // no process may be left in it
		})
		c.controls = append(c.controls, func() {
			seen, err := p.Counters()
			require.NoError(c.t, err)
			used(h, seen)
		})
	}
	return c.besideItself()
}

// besideItself sets up a server on each host.
func (c *hostCell) besideItself() []target {
	c.serves(c.h1, "own", 7001)
	c.serves(c.h2, "app", 7000)
	return []target{
		{name: "another host", port: 7000, want: "app at {{.Dest .Server 7000}} saw client"},
		{name: "the same host", to: "{{.Client}}", port: 7001, want: "own at {{.Dest .Client 7001}} saw client"},
	}
}

// TestSockmapLater attaches a program that moves bytes between a host's sockets while the gateway runs, and detaches
// it. Meanwhile a carried connection's first bytes, which go as packets until both sockets are in the map, could be
// overtaken: so connections must be native, and status must say why.
func TestSockmapLater(t *testing.T) {
	t.Parallel()
	for _, side := range []string{"client", "server"} {
		t.Run(side, func(t *testing.T) {
			w := newWorld(t, testnet.Config{})
			h := w.h1
			if side == "server" {
				h = w.h2
			}
			group := group(t)
			t.Cleanup(func() { require.NoError(t, group.Kill()) })
			h.Within(group)
			w.serve(w.h2)
			w.upBoth(settings{})
			to := w.h2.AddrPort4(echoPort).String()
			w.carried(t, w.h1, to)

			p, err := sockmap.Redirect(group.Path)
			require.NoError(t, err)
			g := w.gateways[h]
			require.Eventually(t, func() bool {
				blocked := g.status().BlockedLegs
				return len(blocked) == 2 && blocked[0].At == "sockmap" && blocked[1].At == "sockmap"
			}, 20*time.Second, 50*time.Millisecond)
			require.Contains(t, g.status().Degraded, "app_leg_blocked")
			w.flush()
			blocked := fallback{w: w, t: t, from: w.h1, to: to, client: local("app_leg_blocked")}
			if h == w.h2 {
				blocked.client, blocked.server = remote("peer_no_option"), local("app_leg_blocked")
			}
			blocked.ping()

			require.NoError(t, p.Close())
			require.Eventually(t, func() bool { return len(g.status().BlockedLegs) == 0 }, 20*time.Second, 50*time.Millisecond)
			w.flush()
			w.carried(t, w.h1, to)
		})
	}
}
