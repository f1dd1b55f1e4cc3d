package e2e

import (
	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/lab/sockmap"
	"github.com/smcgw/smcgw/lab/testnet"
)

// Sockmaps are hosts on which programs of eBPF shorten the way between the sockets of a
// host, or look at what its servers receive. They have all sockets of the host in
// their maps, those of the gateway, too.
func sockmaps() []hostKind {
	return []hostKind{
		{name: "sockmapredirect", sides: anySide, build: func(c *hostCell) []target {
			return c.withSockmap(sockmap.Redirect, func(h *testnet.Host, seen sockmap.Counters) {
				require.NotZero(c.t, seen.Sent, h.Name)
				if h == c.h1 { // a client and its server
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

// withSockmap puts all that is started on the hosts from now on into control groups
// with such programs; used looks at what these have done without gateways.
func (c *hostCell) withSockmap(attach func(string) (*sockmap.Programs, error), used func(*testnet.Host, sockmap.Counters)) []target {
	c.t.Helper()
	for _, h := range c.those() {
		group := group(c.t)
		p, err := attach(group.Path)
		require.NoError(c.t, err)
		h.Within(group)
		c.t.Cleanup(func() {
			require.NoError(c.t, p.Close())
			require.NoError(c.t, group.Kill()) // nobody may be left in it
		})
		c.controls = append(c.controls, func() {
			seen, err := p.Counters()
			require.NoError(c.t, err)
			used(h, seen)
		})
	}
	return c.besideItself()
}

// besideItself has a server on each host.
func (c *hostCell) besideItself() []target {
	c.serves(c.h1, "own", 7001)
	c.serves(c.h2, "app", 7000)
	return []target{
		{name: "another host", port: 7000, want: "app at {{.Dest .Server 7000}} saw client"},
		{name: "the same host", to: "{{.Client}}", port: 7001, want: "own at {{.Dest .Client 7001}} saw client"},
	}
}
