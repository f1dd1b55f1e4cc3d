package e2e

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/report"
)

// TestStatusTellsAStoppedPeer checks that, once the gateway of a peer has stopped, status and peers report so from
// the next connection on, until it is back.
func TestStatusTellsAStoppedPeer(t *testing.T) {
	t.Parallel()
	w := newServed(t)
	g := w.up(w.h1, settings{})
	w.up(w.h2, settings{})
	to := w.h2.AddrPort4(echoPort).String()
	told := func() (note string, state report.PeerState) {
		for _, n := range g.status().Notes {
			if strings.Contains(n, "stayed native") {
				note = n
			}
		}
		if i := slices.IndexFunc(g.peers(), func(p report.PeerInfo) bool { return p.Address == w.h2.Addr4 && p.Port == 0 }); i >= 0 {
			state = g.peers()[i].State
		}
		return note, state
	}

	w.carried(t, w.h1, to)
	require.Eventually(t, func() bool { return len(g.conns("--closed")) > 0 }, 10*time.Second, 10*time.Millisecond)
	note, state := told()
	require.Empty(t, note)
	require.Equal(t, report.PeerCapable, state)

	w.down(w.h2)
	fallback{w: w, t: t, from: w.h1, to: to, client: remote("peer_no_option")}.ping()
	require.Eventually(t, func() bool {
		note, state = told()
		return note != ""
	}, 10*time.Second, 10*time.Millisecond)
	require.Contains(t, note, "peer_no_option. It was carried before")
	require.Equal(t, report.PeerStopped, state)

	w.up(w.h2, settings{})
	w.carried(t, w.h1, to)
	note, state = told()
	require.Empty(t, note)
	require.Equal(t, report.PeerCapable, state)
}
