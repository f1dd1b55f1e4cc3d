package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/admin"
	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/internal/comparison"
	"github.com/smcgw/smcgw/lab/testnet"
)

// benchPort is the port of bench --serve.
const benchPort = 4792

// serveBench starts bench --serve on a host and returns the token.
func (w *world) serveBench(h *testnet.Host) string {
	w.t.Helper()
	token := "abcdefghijklmnopqrstuvwxye"
	cmd := h.Command(context.Background(), binary, "bench", "--serve", "--token", token, "--socket", filepath.Join(w.dir, h.Name+".sock"))
	cmd.Env = append(os.Environ(), "SMCGW_SOCKET="+w.inProcess(h))
	p, err := h.StartCmd(cmd)
	require.NoError(w.t, err)
	ctx, cancel := context.WithTimeout(w.t.Context(), time.Minute)
	defer cancel()
	require.NoError(w.t, p.WaitOutput(ctx, "smcgw bench --peer"), "%s", p.Output())
	w.t.Cleanup(func() {
		require.NoError(w.t, p.Stop(30*time.Second), "%s", p.Output())
		if w.t.Failed() {
			w.t.Logf("bench --serve:\n%s", p.Output())
		}
	})
	return token
}

// bench runs bench --peer on a host and returns its report, again if a connection in it found a gateway late. No test depends
// on the rates in it.
func (w *world) bench(h *testnet.Host, to, token string, args ...string) (r *comparison.Report) {
	w.t.Helper()
	for try := 0; ; try++ {
		r = w.benchOnce(h, to, token, args...)
		late := func(s comparison.Series) bool {
			return s.Spread().N == 0 && slices.ContainsFunc(lateReasons(), func(reason string) bool { return strings.Contains(s.Note, reason) })
		}
		if try == lateTries || !slices.ContainsFunc(r.Series, late) {
			return r
		}
	}
}

func (w *world) benchOnce(h *testnet.Host, to, token string, args ...string) *comparison.Report {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), 3*time.Minute)
	defer cancel()
	var out, errs bytes.Buffer
	require.NoError(w.t, h.Do(func() error {
		cmd := exec.CommandContext(ctx, binary, append([]string{
			"bench", "--peer", to, "--token", token, "--json", "--rounds", "2", "--duration", "100ms",
			"--socket", filepath.Join(w.dir, h.Name+".sock"),
		}, args...)...)
		cmd.Env = append(os.Environ(), "SMCGW_SOCKET="+w.inProcess(h))
		cmd.Stdout, cmd.Stderr = &out, &errs
		return cmd.Run()
	}), "%s", &errs)
	r := new(comparison.Report)
	require.NoError(w.t, json.Unmarshal(out.Bytes(), r), "%s", out.String())
	return r
}

// notes returns the notes in the rows of a variant, without repetitions.
func notes(r *comparison.Report, variant string) (list []string) {
	for _, s := range r.Series {
		if s.Variant == variant && (len(list) == 0 || list[len(list)-1] != s.Note) {
			list = append(list, s.Note)
		}
	}
	return list
}

// TestBenchPeer measures between two gateways whose policy does not select the port. Everything must be measured both
// ways, and the trials must leave nothing behind.
func TestBenchPeer(t *testing.T) {
	t.Parallel()
	w := newWorld(t, testnet.Config{})
	s := settings{Carriers: both2, Handshake: "10s"} // on a busy machine, too, connections must be carried
	g1, g2 := w.upBoth(s)
	token := w.serveBench(w.h2)
	oneFamily(t, func(t *testing.T, addr func(*testnet.Host, uint16) string) {
		to := netip.MustParseAddrPort(addr(w.h2, benchPort)).Addr().String()
		r := w.bench(w.h1, to, token)
		works := map[string]int{}
		for _, s := range r.Series {
			works[s.Work]++
			idle := strings.HasPrefix(s.Work, "idle connection")
			if idle && s.Variant == comparison.TCP || strings.HasPrefix(s.Variant, "in-process") {
				require.Empty(t, s.Values)
				require.NotEmpty(t, s.Note)
				continue
			}
			require.Len(t, s.Values, 2, "%s by %s: %q", s.Work, s.Variant, s.Note)
			// A value may be missing only for a reason.
			require.True(t, s.Spread().N == 2 || s.Note != "", "%s by %s: %v", s.Work, s.Variant, s.Values)
		}
		require.Len(t, works, 25)
		for work, n := range works {
			require.Equal(t, 4, n, work) // including in process, whose note says that there is no library or no promotion
		}
		for _, v := range []string{"shm", "soft"} {
			for _, work := range []string{"upload, 1 stream", "connect, request, close, cold peer"} {
				_, ok := r.Ratio(work, v, comparison.TCP)
				require.True(t, ok, "%s, %s: %v", work, v, notes(r, v))
			}
			for _, work := range []string{"idle connection, rings", "idle connection, rings, serving host"} {
				least := seriesOf(t, r, work, v).Spread()
				require.Positive(t, least.N, "%s: %v", v, notes(r, v))
				require.Greater(t, least.Min, 4096.0, "%s, %s", work, v)
			}
		}
		require.Equal(t, []string{"", "no gateway has memory for it"}, notes(r, comparison.TCP))
	})

	// The port must be free again, and no refusal remembered.
	for _, g := range []*gw{g1, g2} {
		require.Eventually(t, func() bool {
			held, err := g.client().Try(t.Context(), config.Trial{Peer: w.h3.Addr4, Port: benchPort, Action: report.ActionPass})
			if err != nil {
				return false
			}
			held.Close()
			return true
		}, 30*time.Second, 10*time.Millisecond)
		require.Eventually(t, func() bool { // what a cold connection met its peer by must go, too
			return !slices.ContainsFunc(g.peers(), func(p report.PeerInfo) bool { return p.Use.ShmPeers > 1 })
		}, 30*time.Second, 10*time.Millisecond, "%+v", g.peers())
	}
	for _, p := range g1.peers() {
		require.Empty(t, p.Reason, "%+v", p)
	}
}

// seriesOf returns a row of a report.
func seriesOf(t *testing.T, r *comparison.Report, work, variant string) comparison.Series {
	t.Helper()
	i := slices.IndexFunc(r.Series, func(s comparison.Series) bool { return s.Work == work && s.Variant == variant })
	require.GreaterOrEqual(t, i, 0, "%s by %s", work, variant)
	return r.Series[i]
}

// TestBenchPeerSaysWhyNot checks that what cannot be carried is not measured, and that its row gives the reason.
func TestBenchPeerSaysWhyNot(t *testing.T) {
	t.Parallel()
	w := newWorld(t, testnet.Config{})
	w.up(w.h1, settings{Carriers: both2, Handshake: "10s"})
	w.up(w.h2, settings{Carriers: both2, Handshake: "10s", ShmDir: "other"})
	token := w.serveBench(w.h2)
	r := w.bench(w.h1, w.h2.Addr4.String(), token, "--rounds", "1")
	require.Equal(t, []string{"fallback: no_common_carrier"}, notes(r, "shm"))
	_, ok := r.Ratio("upload, 1 stream", "soft", comparison.TCP)
	require.True(t, ok, notes(r, "soft"))
	for _, p := range w.gateways[w.h1].peers() {
		require.Empty(t, p.Reason, "what a trial was refused is not remembered: %+v", p)
	}

	w.restart(w.h1, settings{Mode: "observe", Carriers: both2})
	r = w.bench(w.h1, w.h2.Addr4.String(), token, "--rounds", "1")
	require.Equal(t, []string{"fallback: mode"}, notes(r, "soft"))
	require.Equal(t, []string{"", "no gateway has memory for it"}, notes(r, comparison.TCP))

	w.restart(w.h1, settings{Carriers: both2})
	token = w.serveBench(w.h3) // a plain host
	r = w.bench(w.h1, w.h3.Addr4.String(), token, "--rounds", "1")
	require.Equal(t, []string{"fallback: peer_no_option"}, notes(r, "soft"))
	require.Contains(t, r.Notes, "no gateway on the serving host")
}

// peers lists the peers that a gateway remembers.
func (g *gw) peers() []report.PeerInfo {
	g.w.t.Helper()
	return asks(g, (*admin.Client).Peers).Peers
}
