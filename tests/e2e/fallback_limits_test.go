package e2e

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/lab/apps"
	"github.com/smcgw/smcgw/lab/testnet"
)

// TestFallbackLimits checks what happens when a gateway has run out of something, on either side: the other side
// learns the reason, and the connection is native at once.
func TestFallbackLimits(t *testing.T) {
	t.Parallel()
	w := newServed(t)
	w.up(w.h1, settings{})
	w.up(w.h2, settings{Memory: "1MiB"})
	limited := func(name string, client, server told) {
		t.Run(name, func(t *testing.T) {
			families(t, func(t *testing.T, addr func(*testnet.Host, uint16) string) {
				fallback{w: w, t: t, from: w.h1, to: addr(w.h2, echoPort), client: client, server: server}.ping()
			})
		})
	}
	limited("memory of the server", remote("no_memory"), local("no_memory"))
	w.flush()
	w.restart(w.h2, settings{Carriers: " "})
	limited("carriers of the server", remote("no_common_carrier"), local("no_common_carrier"))
	w.flush()
	w.restart(w.h2, settings{ShmDir: "other", Carriers: "shm"})
	w.restart(w.h1, settings{Carriers: "shm"})
	limited("directory of the server", remote("no_common_carrier"), local("no_common_carrier"))
	w.restart(w.h2, settings{})
	// A client that has nothing to offer resets the wire leg right after its third ACK. Whether the server's gateway
	// still reads the reason is a race.
	w.restart(w.h1, settings{Memory: "1MiB"})
	limited("memory of the client", local("no_memory"), remote("no_memory").or(remote("client_gone")))
	w.restart(w.h1, settings{Carriers: " "})
	limited("carriers of the client", local("no_common_carrier"), remote("no_common_carrier").or(remote("client_gone")))
}

// TestFallbackReleaseAtOnce checks that the SYN of a released connection leaves right after the reset of its wire leg
// and is answered, whatever the server's gateway is doing at that moment.
func TestFallbackReleaseAtOnce(t *testing.T) {
	t.Parallel()
	w := newServed(t)
	w.up(w.h1, settings{NegativeCache: "100ms"})
	w.up(w.h2, settings{Memory: "1MiB"})
	families(t, func(t *testing.T, addr func(*testnet.Host, uint16) string) {
		offers := w.offers()
		for range 4 {
			w.promptly(t, "-count", "200", "-parallel", "4", "-gap", "1ms", "-to", addr(w.h2, transferPort))
		}
		require.Greater(t, w.offers()-offers, uint64(10), "connections that were released")
	})
	require.Zero(t, w.gateways[w.h1].status().FlowsTotal[w.via])
}

// promptly makes many connections, none of which may wait for the kernel's retry. If one does because a gateway stood still,
// they are made again.
func (w *world) promptly(t *testing.T, args ...string) {
	t.Helper()
	for try := 0; ; try++ {
		late, waited := w.late(), w.waitedForCPU()
		e := w.mustApp(w.h1, append([]string{"churn"}, args...)...)
		if e.Repeated == 0 {
			return
		}
		require.Less(t, try, lateTries, "%+v", e)
		stood := w.late() > late || w.waitedForCPU()-waited > stale
		require.True(t, stood, "none waits for the kernel's retry: %+v", e)
	}
}

// TestFallbackFlowLimit allows one flow: the second must be native, and the third carried once the first has ended.
func TestFallbackFlowLimit(t *testing.T) {
	t.Parallel()
	w := newServed(t)
	w.up(w.h1, settings{})
	w.up(w.h2, settings{MaxFlows: 1})
	limited := func(client, server told) {
		families(t, func(t *testing.T, addr func(*testnet.Host, uint16) string) {
			to := addr(w.h2, echoPort)
			p, held := w.holdInTime(t, to)
			for range 2 { // a temporary limit must not be remembered here
				fallback{w: w, t: t, from: w.h1, to: to, client: client, server: server}.ping()
			}
			leaves(t, p)
			w.carriedBy(held, w.via)
			w.carried(t, w.h1, to)
		})
	}
	limited(remote("peer_no_option"), local("flow_limit"))
	w.restart(w.h2, settings{})
	w.restart(w.h1, settings{MaxFlows: 1})
	limited(local("flow_limit"), nothing) // the server has answered the offer and hears nothing more
}

// hold opens a connection, exchanges bytes on it and keeps it open.
func (w *world) hold(t *testing.T, from *testnet.Host, to string) (*testnet.Proc, apps.Event) {
	t.Helper()
	p, err := from.StartApp("hold", "-to", to)
	require.NoError(t, err)
	return p, pinged(t, p)
}

// holdInTime is hold from h1 for a connection that must be carried, again if it finds a gateway late.
func (w *world) holdInTime(t *testing.T, to string) (p *testnet.Proc, e apps.Event) {
	t.Helper()
	return w.heldInTime(t, func() (*testnet.Proc, apps.Event) { return w.hold(t, w.h1, to) })
}

// heldInTime is holdInTime for a connection that is made in a given way.
func (w *world) heldInTime(t *testing.T, hold func() (*testnet.Proc, apps.Event)) (p *testnet.Proc, e apps.Event) {
	t.Helper()
	w.inTime(func() bool {
		if p != nil {
			leaves(t, p)
		}
		p, e = hold()
		return !w.foundLate(e)
	})
	return p, e
}

// pinged makes a holding client exchange bytes and returns its connection.
func pinged(t *testing.T, p *testnet.Proc) apps.Event {
	t.Helper()
	ctx := patience(t)
	ev, err := p.WaitEvents(ctx, 1, func(e apps.Event) bool { return e.Event == "connected" })
	require.NoError(t, err)
	require.Empty(t, ev[0].Error)
	pings(t, p, 1)
	return ev[0]
}

// pings makes a holding client exchange bytes on each of its connections.
func pings(t *testing.T, p *testnet.Proc, conns int) {
	t.Helper()
	e, err := p.Ask(patience(t), "ping")
	require.NoError(t, err)
	require.Equal(t, conns, e.OK, "%+v", e)
}

// lastPing makes a holding client exchange bytes and end in order.
func lastPing(t *testing.T, p *testnet.Proc) apps.Event {
	t.Helper()
	require.NoError(t, p.Send("ping"))
	require.NoError(t, p.CloseInput())
	e := result(t, p)
	require.Zero(t, e.Failed, "%+v", e)
	return e
}

// leaves ends a client that holds connections, and requires it to end in order.
func leaves(t *testing.T, p *testnet.Proc) {
	t.Helper()
	require.NoError(t, p.CloseInput())
	require.NoError(t, p.Wait())
}
