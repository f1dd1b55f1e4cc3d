package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/lab/apps"
	"github.com/smcgw/smcgw/lab/testnet"
)

// frozen stops both processes of a gateway, runs fn, and continues them.
func (g *gw) frozen(fn func()) {
	daemon, guardian := g.daemon(), g.proc.Pid()
	g.signal(guardian, syscall.SIGSTOP) // otherwise it would kill its daemon
	g.signal(daemon, syscall.SIGSTOP)
	defer g.signal(guardian, syscall.SIGCONT)
	defer g.signal(daemon, syscall.SIGCONT)
	for _, pid := range []int{guardian, daemon} {
		require.Eventually(g.w.t, func() bool { return stopped(pid) }, 10*time.Second, time.Millisecond)
	}
	fn()
}

// stopped tells whether all threads of a process are stopped: on a busy machine others run on until the one that got
// the signal stops them.
func stopped(pid int) bool {
	threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	return !slices.ContainsFunc(threads, func(stat string) bool {
		b, err := os.ReadFile(stat)
		return err == nil && !strings.Contains(string(b), ") T ")
	})
}

// carriedSoon makes connections until one is carried, and returns that one.
func (w *world) carriedSoon(t *testing.T, to string, within time.Duration) (e apps.Event) {
	t.Helper()
	require.Eventually(t, func() bool {
		e = w.mustApp(w.h1, "ping", "-to", to)
		for _, c := range w.gateways[w.h1].everything(from(e)) {
			if c.Carrier == w.via {
				return true
			}
		}
		return false
	}, within, 100*time.Millisecond)
	return e
}

// TestRememberedLateServer stops the server's gateway while connections begin. The path must not be blamed, and
// connections must be carried again within seconds.
func TestRememberedLateServer(t *testing.T) {
	t.Parallel()
	w := newServed(t)
	g1, g2 := w.upBoth(settings{Handshake: quick})
	families(t, func(t *testing.T, addr func(*testnet.Host, uint16) string) {
		to := addr(w.h2, echoPort)
		w.carriedSoon(t, to, slowed(40*time.Second)) // a busy machine may be too slow for the quick handshake
		g2.frozen(func() {
			w.mustApp(w.h1, "churn", "-count", "100", "-parallel", "20", "-size", "1000", "-limit", "30s", "-to", addr(w.h2, transferPort))
		})
		require.NotContains(t, g1.status().FallbacksTotal, "option_blackholed")
		for _, port := range []uint16{0, echoPort, transferPort} {
			p, ok := g1.peer(hostOf(to), port)
			require.True(t, !ok || p.State != report.PeerBlackholed && p.ExpiresSeconds <= 31, "%+v", p)
		}
		w.carriedSoon(t, to, slowed(40*time.Second))
	})
}

// TestRememberedLateClient stops the client's own gateway in the middle of handshakes. Nothing of that may be
// remembered about the peer.
func TestRememberedLateClient(t *testing.T) {
	t.Parallel()
	w := newServed(t)
	w.upBoth(settings{Handshake: "500ms"}) // enough for the peer on a busy machine, too, since what it declines is remembered
	families(t, func(t *testing.T, addr func(*testnet.Host, uint16) string) {
		to := addr(w.h2, echoPort)
		require.True(t, w.inTime(func() bool { return w.freezesClient(t, addr) }))
		w.carried(t, w.h1, to)
	})
}

// freezesClient stops the client's gateway in the middle of handshakes, and checks what is remembered. It returns false if the
// server's gateway was late, too: its client may remember that.
func (w *world) freezesClient(t *testing.T, addr func(*testnet.Host, uint16) string) bool {
	t.Helper()
	g1, g2 := w.gateways[w.h1], w.gateways[w.h2]
	w.flush()
	w.carried(t, w.h1, addr(w.h2, echoPort))
	late := g2.status().FallbacksTotal[gatewayStale]
	for range 3 {
		p, err := w.h1.StartApp("churn", "-count", "200", "-parallel", "10", "-size", "1000", "-limit", "30s", "-to", addr(w.h2, transferPort))
		require.NoError(t, err)
		time.Sleep(200 * time.Millisecond) // in the middle of handshakes
		g1.frozen(func() { time.Sleep(time.Second) })
		require.NoError(t, p.Wait())
	}
	for _, port := range []uint16{0, transferPort} {
		p, ok := g1.peer(hostOf(addr(w.h2, transferPort)), port)
		if ok && g2.status().FallbacksTotal[gatewayStale] > late {
			return false
		}
		require.False(t, ok, "%+v", p)
	}
	return true
}
