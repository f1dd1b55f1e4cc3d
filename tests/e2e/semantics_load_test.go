package e2e

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/admin"
	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/lab/apps"
	"github.com/smcgw/smcgw/lab/daemon"
	"github.com/smcgw/smcgw/lab/matrix"
	"github.com/smcgw/smcgw/lab/testnet"
)

// TestSemanticsUnderLoad makes writes of any size, streams of gigabytes, many connections in a row and at once.
// Afterwards the daemons must be as small as before.
//
// Each run draws the carrier.
func TestSemanticsUnderLoad(t *testing.T) {
	for _, via := range matrix.Cells(t, []report.Carrier{report.CarrierShm, report.CarrierSoft}, 1) {
		t.Run(string(via), func(t *testing.T) { semanticsUnderLoad(t, via) })
	}
}

func semanticsUnderLoad(t *testing.T, via report.Carrier) {
	w := newServed(t)
	w.via = via
	// On two cores starting 500 at once takes longer than the default allows.
	patient := settings{Handshake: "2s"}
	g1, g2 := w.upBoth(patient)
	oneFamily(t, func(t *testing.T, addr func(*testnet.Host, uint16) string) {
		to := addr(w.h2, transferPort)
		started, late := g1.status().FlowsTotal, w.late()
		e := w.mustApp(w.h1, "churn", "-count", "100", "-parallel", "20", "-size", "4096", "-to", to)
		require.Equal(t, 100, e.OK)
		before := []usage{w.settled(t, g1), w.settled(t, g2)}

		w.carriedApp(t, w.h1, "ping", "-onebyte", "-size", "2000", "-count", "5", "-to", addr(w.h2, echoPort))
		up, down := manyBytes(t)
		e = w.carriedApp(t, w.h1, "transfer", "-write", "67108864", "-up", itoa(up), "-down", itoa(down), "-to", to)
		require.EqualValues(t, up, e.Sent)
		require.EqualValues(t, down, e.Received)
		w.carriedApp(t, w.h1, "ping", "-banner", "-to", addr(w.h2, firstPort))

		e = w.mustApp(w.h1, "churn", "-count", "1000", "-size", "4096", "-to", to)
		require.Equal(t, 1000, e.OK)
		total := g1.status().FlowsTotal
		missing := 100 + 3 + 1000 - (total[w.via] - started[w.via])
		require.LessOrEqual(t, missing, w.late()-late, "all carried, but those that found a gateway late: %v", total)
		e = w.mustApp(w.h1, "churn", "-count", "500", "-parallel", "500", "-size", "20000", "-to", to)
		require.Equal(t, 500, e.OK)
		now := g1.status().FlowsTotal
		carried, relay := now[w.via]-total[w.via], now[report.CarrierRelay]-total[report.CarrierRelay]
		// Under overload connections become native, or relayed if a queue pair is late.
		require.Positive(t, carried, "%v", now)
		t.Logf("500 at once: %d by %s, %d relayed", carried, w.via, relay)

		for i, g := range []*gw{g1, g2} {
			after := w.settled(t, g)
			require.Eventually(t, func() bool {
				after = w.usage(t, g)
				return !after.leaks(before[i])
			}, 30*time.Second, 200*time.Millisecond, "%+v, then %+v", before[i], after)
			t.Logf("%s: %+v, then %+v", g.h.Name, before[i], after)
			require.Zero(t, after.memory)
			// What a burst needed is freed by the next garbage collection, which an idle daemon runs every two minutes.
			require.Eventually(t, func() bool { return w.usage(t, g).resident < before[i].resident+64<<20 },
				150*time.Second, time.Second, "%+v, then %+v", before[i], after)
		}
	})
}

// manyBytes returns how many bytes a connection has each way: 2 GiB, more than 31 bits count. Only whole matrices have
// both at once; other runs draw one.
func manyBytes(t *testing.T) (up, down int) {
	up, down = 2<<30, 2<<30
	if !matrix.Whole() {
		*matrix.Cells(t, []*int{&up, &down}, 1)[0] = 64 << 20
	}
	return up, down
}

// largestRings is the size to which a receive ring grows, with that of the ring before it, which stays until it has
// been read, and what the pool adds.
const largestRings = 4<<20 + 1<<20 + 64<<10

// TestSemanticsOfSlowReader checks that a reader that does not read stops the writer after a bounded number of bytes,
// and that the gateways do not grow meanwhile.
func TestSemanticsOfSlowReader(t *testing.T) {
	t.Parallel()
	w := newWorld(t, testnet.Config{})
	g1, g2 := w.upBoth(ownSettings())
	families(t, func(t *testing.T, addr func(*testnet.Host, uint16) string) {
		to := w.h2.AddrPort4(ownPort)
		if strings.HasPrefix(addr(w.h2, 1), "[") {
			to = w.h2.AddrPort6(ownPort)
		}
		ln, err := w.h2.Listen("tcp", to.String())
		require.NoError(t, err)
		defer ln.Close()
		p := w.carriedPair(t, ln, to)
		defer p.close()
		before := []usage{w.usage(t, g1), w.usage(t, g2)}
		for _, end := range []struct{ from, to *net.TCPConn }{{p.c, p.s}, {p.s, p.c}} {
			n := fill(t, end.from)
			require.Less(t, n, 32<<20, "bounded")
			for i, g := range []*gw{g1, g2} {
				// A ring may grow as long as the reader's kernel accepts data.
				require.LessOrEqual(t, w.usage(t, g).memory, before[i].memory+largestRings, "rings are bounded")
				require.Eventually(t, func() bool { return w.usage(t, g).resident < before[i].resident+32<<20 },
					150*time.Second, time.Second, "%+v", before[i]) // except for garbage
			}
			require.NoError(t, end.from.CloseWrite())
			require.NoError(t, end.to.SetDeadline(time.Now().Add(socketPatience)))
			require.Equal(t, fmt.Sprintf("%d bytes, EOF", n), receive(end.to))
		}
		require.False(t, w.ended(t, p.event(), w.via, report.EndClosed), "relayed")
	})
}

// fill writes the pattern until nothing is taken for a while.
func fill(t *testing.T, c *net.TCPConn) (n int) {
	t.Helper()
	n, err := fillUp(c)
	if err != nil {
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	}
	require.NoError(t, c.SetDeadline(time.Now().Add(socketPatience)))
	return n
}

// TestSemanticsOfKilledApps checks that a kill -9 of an application ends its connections for the other side as
// natively: with a FIN, or with a reset if it had not read everything.
func TestSemanticsOfKilledApps(t *testing.T) {
	t.Parallel()
	w := newWorld(t, testnet.Config{})
	servers := map[*testnet.Host]*testnet.Proc{w.h2: w.serve(w.h2), w.h3: w.serve(w.h3)}
	w.upBoth(settings{})
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	families(t, func(t *testing.T, addr func(*testnet.Host, uint16) string) {
		// A client that is killed while it holds a connection: its server sees a FIN, or a reset if the client had
		// unread bytes.
		saw := map[*testnet.Host][]string{}
		for h, server := range servers {
			holder, err := w.h1.StartApp("hold", "-to", addr(h, echoPort))
			require.NoError(t, err)
			connected, err := holder.WaitEvents(ctx, 1, func(e apps.Event) bool { return e.Event == "connected" })
			require.NoError(t, err)
			require.NoError(t, holder.Kill())
			saw[h] = append(saw[h], closedAs(t, ctx, server, connected[0]))

			deaf, err := w.h1.StartApp("connect", "-gap", "1m", "-to", addr(h, firstPort))
			require.NoError(t, err)
			accepted, err := server.WaitEvents(ctx, 1, func(e apps.Event) bool { return e.Event == "accepted" && e.Local == addr(h, firstPort) })
			require.NoError(t, err)
			require.Eventually(t, func() bool { return w.unread(t, w.h1, accepted[0].Remote) == len(apps.Banner) },
				30*time.Second, 50*time.Millisecond)
			require.NoError(t, deaf.Kill())
			saw[h] = append(saw[h], closedAs(t, ctx, server, apps.Event{Local: accepted[0].Remote, Remote: accepted[0].Local}))
		}
		require.Equal(t, []string{"end", "ECONNRESET"}, saw[w.h3])
		require.Equal(t, saw[w.h3], saw[w.h2])
	})
	// The servers are killed: their clients must see the end at once.
	for _, h := range []*testnet.Host{w.h2, w.h3} {
		holder, err := w.h1.StartApp("hold", "-count", "5", "-to", h.AddrPort6(echoPort).String())
		require.NoError(t, err)
		pings(t, holder, 5) // connections in the backlog would be reset instead
		require.NoError(t, servers[h].Kill())
		ended, err := holder.WaitEvents(ctx, 5, func(e apps.Event) bool { return e.Event == "ended" })
		require.NoError(t, err)
		for _, e := range ended {
			require.Empty(t, e.Errno, "%+v", e)
		}
		require.NoError(t, holder.CloseInput())
	}
	w.quiet(t)
}

// closedAs waits until a server has seen the end of a client's connection, and returns how it ended.
func closedAs(t *testing.T, ctx context.Context, server *testnet.Proc, client apps.Event) string {
	t.Helper()
	closed, err := server.WaitEvents(ctx, 1, func(e apps.Event) bool {
		return e.Event == "closed" && e.Remote == client.Local && e.Local == client.Remote
	})
	require.NoError(t, err)
	if closed[0].Errno == "" {
		return "end"
	}
	return closed[0].Errno
}

// unread returns how many bytes the application's end of a connection has that were not read, as ss tells.
func (w *world) unread(t *testing.T, h *testnet.Host, local string) (n int) {
	t.Helper()
	out, err := h.Run(t.Context(), "ss", "-tnH", "state", "established")
	require.NoError(t, err)
	for line := range strings.Lines(out) {
		if f := strings.Fields(line); len(f) >= 4 && f[2] == local {
			n, err = strconv.Atoi(f[0])
			require.NoError(t, err)
		}
	}
	return n
}

// usage is what a daemon uses of its host.
type usage struct {
	descriptors, goroutines int
	resident                int
	entries                 int
	memory                  uint64
}

// settled waits until nothing of a flow is left in a gateway, its maps and its kernel, and then measures.
func (w *world) settled(t *testing.T, g *gw) (u usage) {
	t.Helper()
	w.quiet(t)
	require.Eventually(t, func() bool {
		u = w.usage(t, g)
		return u.entries == 0 && u.memory == 0
	}, 30*time.Second, 200*time.Millisecond, "%s: flows left in the maps", g.h.Name)
	legs := fmt.Sprintf("--net=/proc/%d/ns/net", g.keeper())
	out, err := exec.CommandContext(t.Context(), "nsenter", legs, "ss", "-tnaH").CombinedOutput()
	require.NoError(t, err, "%s", out)
	for line := range strings.Lines(string(out)) {
		if !strings.HasPrefix(line, "LISTEN") && !strings.HasPrefix(line, "UNCONN") {
			t.Errorf("%s: a socket of the gateway is left: %s", g.h.Name, line)
		}
	}
	return u
}

// usage measures a daemon by its metrics.
func (w *world) usage(t *testing.T, g *gw) usage {
	t.Helper()
	m := g.metrics(t)
	return usage{
		descriptors: int(m["process_open_fds"]), goroutines: int(m["go_goroutines"]),
		resident: int(m["process_resident_memory_bytes"]), entries: int(m[`smcgw_ebpf_map_entries{map="flows"}`]),
		memory: g.status().Memory.UsedBytes,
	}
}

// metrics reads the metrics of a gateway.
func (g *gw) metrics(t *testing.T) daemon.Metrics {
	t.Helper()
	return asks(g, func(c *admin.Client, ctx context.Context) (daemon.Metrics, error) { return daemon.ReadMetrics(ctx, c) })
}
