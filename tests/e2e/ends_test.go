package e2e

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/lab/testnet"
)

// endedBy is a way in which carried connections are reset, with what both hosts report.
type endedBy struct {
	name           string
	do             func(t *testing.T, w *world, p *pair)
	client, server told
	quiet          bool // the log has no line about it
}

var endedBys = []endedBy{
	{
		name: "the client's application", do: func(t *testing.T, _ *world, p *pair) { resetNow(t, p.c) },
		client: local("app_reset"), server: remote("app_reset"), quiet: true,
	},
	{
		name: "the server's application", do: func(t *testing.T, _ *world, p *pair) { resetNow(t, p.s) },
		client: remote("app_reset"), server: local("app_reset"), quiet: true,
	},
	{
		name: "off --now at the server", do: func(t *testing.T, w *world, _ *pair) {
			g := w.gateways[w.h2]
			g.says("off", "--now")
			g.says("on")
		},
		client: remote("off"), server: local("off"),
	},
	{
		name: "a drain at the server", do: func(t *testing.T, w *world, _ *pair) {
			_, err := w.gateways[w.h2].cli("drain", "--timeout", "100ms")
			require.Error(t, err, "it has reset connections")
		},
		client: remote("drained"),
	},
	{
		name: "the death of the server's gateway", do: func(_ *testing.T, w *world, _ *pair) {
			g := w.gateways[w.h2]
			g.signal(g.daemon(), syscall.SIGKILL)
		},
		client: remote("wire_reset").or(local("peer_dead")),
	},
}

// resetNow closes a connection with a reset.
func resetNow(t *testing.T, c *net.TCPConn) {
	require.NoError(t, c.SetLinger(0))
	require.NoError(t, c.Close())
}

// TestPrograms checks that conns names the process that has the socket, for carried and native connections.
func TestPrograms(t *testing.T) {
	t.Parallel()
	w := newWorld(t, testnet.Config{})
	for _, h := range []*testnet.Host{w.h1, w.h2} {
		w.up(h, settings{Ports: fmt.Sprint(slowPort)})
	}
	ln, err := w.h2.Listen("tcp", w.h2.AddrPort4(slowPort).String())
	require.NoError(t, err)
	defer ln.Close()
	p := w.carriedPair(t, ln, w.h2.AddrPort4(slowPort))
	defer p.close()
	exe, err := os.Executable()
	require.NoError(t, err)
	cells := fmt.Sprintf(` %s +%d +%d +/`, regexp.QuoteMeta(filepath.Base(exe)), os.Getpid(), os.Getuid())
	for _, h := range []*testnet.Host{w.h1, w.h2} {
		carrying := regexp.MustCompile(`carrying .*` + cells)
		var out string
		require.Eventually(t, func() bool { // the server's gateway may not be that far
			out, err = w.gateways[h].cli("conns", "-o", "wide")
			return err == nil && carrying.MatchString(out)
		}, 30*time.Second, 20*time.Millisecond, "%s: %s", h.Name, &out)
		out = w.gateways[h].says("peers")
		require.Regexp(t, `(?m)^10\.77\.0\.\d .* `+regexp.QuoteMeta(w.gateways[h].status().Version)+` +enforce `, out)
	}
	w.gateways[w.h2].says("off")
	c, err := w.h1.Dial(t.Context(), "tcp", w.h2.AddrPort4(slowPort).String())
	require.NoError(t, err)
	defer c.Close()
	var native string
	require.Eventually(t, func() bool {
		native, err = w.gateways[w.h1].cli("conns", "--native", "-o", "wide")
		return err == nil && strings.Contains(native, c.LocalAddr().String())
	}, 30*time.Second, 20*time.Millisecond)
	require.Regexp(t, regexp.QuoteMeta(c.LocalAddr().String())+` .*`+cells, native)
}

// TestEnds checks that both hosts report, count and log why a carried connection was reset, with a reason of its own
// for each cause.
func TestEnds(t *testing.T) {
	t.Parallel()
	for _, via := range []report.Carrier{report.CarrierShm, report.CarrierSoft} {
		t.Run(string(via), func(t *testing.T) {
			w := newWorld(t, testnet.Config{})
			w.via = via
			s := settings{Carriers: strings.TrimPrefix(string(via), "rdma-"), Ports: fmt.Sprint(slowPort)}
			w.up(w.h1, s)
			for _, by := range endedBys {
				t.Run(by.name, func(t *testing.T) {
					g := w.up(w.h2, s)
					t.Cleanup(func() { _ = g.proc.Stop(slowed(30 * time.Second)) })
					w.flush()
					w.endsBy(t, by)
				})
			}
		})
	}
}

func (w *world) endsBy(t *testing.T, by endedBy) {
	ln, err := w.h2.Listen("tcp", w.h2.AddrPort4(slowPort).String())
	require.NoError(t, err)
	defer ln.Close()
	p := w.carriedPair(t, ln, w.h2.AddrPort4(slowPort))
	defer p.close()
	e := p.event()
	before := map[*testnet.Host]map[string]float64{}
	for _, h := range []*testnet.Host{w.h1, w.h2} {
		before[h] = w.gateways[h].metrics(t)
	}
	by.do(t, w, p)
	w.tellsEnd(t, w.h1, by, by.client, report.SideClient, from(e), before[w.h1])
	if by.server != nil { // its gateway is still there
		w.tellsEnd(t, w.h2, by, by.server, report.SideServer, at(e), before[w.h2])
	}
}

// tellsEnd checks what a host reports about the end of a connection.
func (w *world) tellsEnd(t *testing.T, h *testnet.Host, by endedBy, want told, side report.Side, match func(report.ConnInfo) bool, before map[string]float64) {
	g := w.gateways[h]
	c := g.closedConn(match)
	require.Equal(t, report.EndAborted, c.End)
	require.Contains(t, want, word{c.Reason, c.DecidedBy}, "%s", h.Name)
	series := fmt.Sprintf(`smcgw_connections_ended_total{decided_by=%q,reason=%q,side=%q}`, c.DecidedBy, c.Reason, side)
	require.Contains(t, before, series, "it is there before anything ends")
	require.InDelta(t, 1, g.metrics(t)[series]-before[series], 0, series)
	line := fmt.Sprintf(`msg="carried connections reset" count=1 reason=%s decided_by=%s`, c.Reason, c.DecidedBy)
	if by.quiet {
		time.Sleep(1200 * time.Millisecond)
		require.NotContains(t, g.proc.Output(), line)
		return
	}
	require.Eventually(t, func() bool { return strings.Contains(g.proc.Output(), line) }, 30*time.Second, 20*time.Millisecond, "%s: %s", h.Name, line)
}

// carriedPair opens connections until one is carried: on a busy machine one may be native.
func (w *world) carriedPair(t *testing.T, ln net.Listener, to netip.AddrPort) (p *pair) {
	t.Helper()
	require.Eventually(t, func() bool {
		var err error
		p, err = dialPair(w.h1, ln, to)
		require.NoError(t, err)
		for end := time.Now().Add(3 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
			for _, c := range w.gateways[w.h1].conns() {
				if from(p.event())(c) && c.Carrier == w.via {
					return true
				}
			}
		}
		p.close()
		w.flush()
		return false
	}, time.Minute, 10*time.Millisecond, "a connection is carried")
	return p
}
