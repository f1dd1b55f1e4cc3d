package e2e

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/lab/apps"
	"github.com/smcgw/smcgw/lab/testnet"
)

// TestFallbackBoxDrops puts a box on the path that drops SYNs or SYN-ACKs with the option. Two connections need the
// kernel's bare retry; then the destination is left alone until the entry expires or an operator flushes it.
func TestFallbackBoxDrops(t *testing.T) {
	t.Parallel()
	w := newServed(t)
	g1 := w.up(w.h1, settings{Handshake: quick, NegativeCache: "10s"}) // a blackhole is remembered for six times as long
	w.up(w.h2, settings{Handshake: quick})
	for _, c := range []struct {
		name string
		box  testnet.Box
	}{
		{"offers", testnet.Box{EatOffers: true}},
		{"accepts", testnet.Box{DropAccepts: true}}, // the server does not remember an offer that it has answered
	} {
		t.Run(c.name, func(t *testing.T) {
			w.box(t, c.box)
			families(t, func(t *testing.T, addr func(*testnet.Host, uint16) string) {
				require.True(t, w.inTime(func() bool { return w.blackholes(t, g1, addr(w.h2, echoPort)) }))
			})
		})
	}
}

// blackholes makes connections through such a box. It tells whether no gateway was late meanwhile.
func (w *world) blackholes(t *testing.T, g1 *gw, to string) bool {
	t.Helper()
	w.flush()
	eaten := fallback{w: w, t: t, from: w.h1, to: to, client: remote("option_blackholed"), retried: true}
	alone := fallback{w: w, t: t, from: w.h1, to: to, client: remote("option_blackholed")}

	if eaten.once() {
		return false
	}
	_, ok := g1.peer(hostOf(to), 0)
	require.False(t, ok, "one lost SYN is no box")
	if eaten.once() {
		return false
	}
	p, ok := g1.peer(hostOf(to), 0)
	require.True(t, ok)
	require.Equal(t, report.PeerBlackholed, p.State)
	require.InDelta(t, 30, p.ExpiresSeconds, 30)

	offers := w.offers()
	if alone.once() {
		return false
	}
	require.Equal(t, offers, w.offers(), "no offer to a blackholed destination")
	w.flush()
	_, ok = g1.peer(hostOf(to), 0)
	require.False(t, ok)
	return !eaten.once()
}

// TestFallbackBoxStrips puts a box on the path that removes the option from some segments, or copies the client's
// onto the answer. No connection may wait for anything.
func TestFallbackBoxStrips(t *testing.T) {
	t.Parallel()
	w := newServed(t)
	w.serve(w.h3)
	w.upBoth(settings{Handshake: quick})
	banner := []string{"-banner"} // the server speaks first
	for _, c := range []struct {
		name                   string
		box                    testnet.Box
		to                     *testnet.Host
		port                   uint16
		args                   []string
		client, server         told // of the first connection
		nextClient, nextServer told
		raw                    bool // the server's gateway relays the client's bytes
	}{
		{
			name: "offer", box: testnet.Box{StripSYN: true}, to: w.h2, port: echoPort,
			client: remote("peer_no_option"), nextClient: remote("peer_no_option"),
		}, {
			name: "accept", box: testnet.Box{StripSYNACK: true}, to: w.h2, port: firstPort, args: banner, raw: true,
			client: remote("peer_no_option"), server: local("accept_lost"),
			nextClient: remote("peer_no_option"), nextServer: local("accept_lost"),
		}, {
			// The server's gateway connects to its application when the third ACK has no option, and finds out with
			// the first bytes.
			name: "confirm", box: testnet.Box{StripRest: true}, to: w.h2, port: echoPort, raw: true,
			client: remote("wire_reset"), server: local("accept_lost"), nextClient: local("wire_reset"),
		}, {
			// ... The application may send its first bytes before that; to the client's gateway they are not CLC.
			name: "confirm, server first", box: testnet.Box{StripRest: true}, to: w.h2, port: firstPort, args: banner, raw: true,
			client: remote("wire_reset").or(local("accept_lost")), server: local("accept_lost"), nextClient: local("wire_reset"),
		}, {
			name: "mirrored", box: testnet.Box{Mirror: true}, to: w.h3, port: echoPort,
			client: remote("option_mirrored"), nextClient: remote("option_mirrored"),
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			families(t, func(t *testing.T, addr func(*testnet.Host, uint16) string) {
				w.flush()
				f := fallback{w: w, t: t, from: w.h1, to: addr(c.to, c.port), args: c.args}
				w.box(t, c.box)
				f.client, f.server, f.raw = c.client, c.server, c.raw
				e := f.ping()
				f.client, f.server, f.raw = c.nextClient, c.nextServer, false
				if len(c.client) > 1 && w.gateways[w.h1].knows(from(e), c.client[1:]) {
					f.client = c.client[1:]
				}
				f.ping()
				require.NoError(t, w.net.SetBox(testnet.Box{}))
			})
		})
	}
	families(t, func(t *testing.T, addr func(*testnet.Host, uint16) string) {
		w.flush()
		w.box(t, testnet.Box{Mirror: true})
		w.carried(t, w.h1, addr(w.h2, echoPort)) // an answer with an option of its own is not touched
	})
}

// TestFallbackBoxAcceptLost checks that the server's gateway relays what a native client sends to it, every byte and
// both ends of the stream, and that it accepts the client's offers again after a while.
func TestFallbackBoxAcceptLost(t *testing.T) {
	t.Parallel()
	w := newServed(t)
	w.up(w.h1, settings{Handshake: quick})
	g2 := w.up(w.h2, settings{Handshake: quick, NegativeCache: "160s"}) // a lost accept is remembered for a twentieth of that
	families(t, func(t *testing.T, addr func(*testnet.Host, uint16) string) {
		w.box(t, testnet.Box{StripSYNACK: true})
		to := addr(w.h2, transferPort)
		f := fallback{w: w, t: t, from: w.h1, to: to, client: remote("peer_no_option"), server: local("accept_lost"), raw: true}
		e := f.inTime(func() apps.Event {
			return w.mustApp(w.h1, "transfer", "-up", "3000000", "-down", "3000000", "-late", "-to", to)
		})
		p, ok := g2.peer(hostOf(addr(w.h1, 0)), 0)
		require.True(t, ok)
		require.Equal(t, "accept_lost", p.Reason)
		require.Greater(t, g2.everything(at(e))[0].RxBytes, uint64(3000000))
		require.NoError(t, w.net.SetBox(testnet.Box{}))
		require.Eventually(t, func() bool {
			_, ok := g2.peer(hostOf(addr(w.h1, 0)), 0)
			return !ok
		}, 30*time.Second, 20*time.Millisecond)
		w.carried(t, w.h1, addr(w.h2, echoPort))
	})
}

// TestFallbackBoxChurn makes many short connections at a time through boxes that make the gateways change their
// minds. Each must get its bytes, and none may wait.
func TestFallbackBoxChurn(t *testing.T) {
	t.Parallel()
	w := newServed(t)
	w.up(w.h1, settings{Handshake: quick, NegativeCache: "100ms"}) // so that offers do not stop
	g2 := w.up(w.h2, settings{Handshake: quick, NegativeCache: "100ms"})
	for name, box := range map[string]testnet.Box{
		"accept": {StripSYNACK: true}, "confirm": {StripRest: true},
	} {
		t.Run(name, func(t *testing.T) {
			w.box(t, box)
			families(t, func(t *testing.T, addr func(*testnet.Host, uint16) string) {
				before := g2.status().FallbacksTotal["accept_lost"]
				for range 3 {
					w.promptly(t, "-count", "200", "-parallel", "4", "-gap", "1ms", "-size", "20000", "-to", addr(w.h2, transferPort))
				}
				require.Greater(t, g2.status().FallbacksTotal["accept_lost"]-before, uint64(5))
			})
		})
	}
}
