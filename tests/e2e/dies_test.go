package e2e

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/process"
	"github.com/smcgw/smcgw/lab/apps"
	"github.com/smcgw/smcgw/lab/testnet"
)

// daemon is the process of a gateway that does the work, the guardian's child.
func (g *gw) daemon() int {
	g.w.t.Helper()
	pids := slices.DeleteFunc(g.h.Children(g.proc.Pid()), func(pid int) bool { return !saysOnItsLine(pid, g.config) })
	require.NotEmpty(g.w.t, pids, "gateway of %s has no daemon", g.h.Name)
	return pids[0]
}

// processes are guardian and daemon of a gateway. The keeper of its legs is in
// another namespace.
func (g *gw) processes() (pids []int) {
	return slices.DeleteFunc(g.h.Processes(), func(pid int) bool { return !saysOnItsLine(pid, g.config) })
}

// saysOnItsLine reports whether a process has a word on its command line.
func saysOnItsLine(pid int, word string) bool {
	cmd, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	return strings.Contains(string(cmd), word)
}

// keeper is the process that makes the legs of a gateway.
func (g *gw) keeper() int { return g.inNamespace(process.LegsVerb) }

// spare is the process that takes the place of the keeper.
func (g *gw) spare() int { return g.inNamespace(process.SpareVerb) }

// inNamespace waits for a process in the namespace of the legs.
func (g *gw) inNamespace(verb string) int {
	g.w.t.Helper()
	var pids []int
	require.Eventually(g.w.t, func() bool {
		pids = slices.DeleteFunc(testnet.ChildrenAnywhere(g.proc.Pid()), func(pid int) bool { return !saysOnItsLine(pid, "\x00"+verb+"\x00") })
		return len(pids) == 1
	}, 10*time.Second, 10*time.Millisecond, "%s of %s", verb, g.h.Name)
	return pids[0]
}

// death is a way for a gateway to end.
type death struct {
	name string
	do   func(g *gw)
	// carried is how long carried connections may outlive it.
	carried time.Duration
	// late is the longest any connect() begun around it may take.
	late time.Duration
}

// The times are those of the design with some seconds for a busy machine: a
// connection attempt that loses its gateway goes on with the application's own
// retransmission after 1 s, and after another one where the server's
// application had already been connected.
var deaths = []death{
	{"kill daemon", func(g *gw) { g.signal(g.daemon(), syscall.SIGKILL) }, 10 * time.Second, 6 * time.Second},
	{"kill both", func(g *gw) {
		d := g.daemon()
		g.signal(g.proc.Pid(), syscall.SIGKILL)
		g.signal(d, syscall.SIGKILL)
	}, 10 * time.Second, 6 * time.Second},
	{"stop daemon", func(g *gw) { g.signal(g.daemon(), syscall.SIGSTOP) }, 12 * time.Second, 6 * time.Second},
	{"clean stop", func(g *gw) { g.signal(g.proc.Pid(), syscall.SIGTERM) }, 10 * time.Second, 6 * time.Second},
}

func (g *gw) signal(pid int, s syscall.Signal) {
	g.w.t.Helper()
	require.NoError(g.w.t, syscall.Kill(pid, s))
}

// TestDies: however a gateway ends, on whichever host, no connection attempt
// fails, carried connections get a prompt reset, and nothing stays attached.
func TestDies(t *testing.T) {
	t.Parallel()
	for _, d := range deaths {
		for _, host := range []string{"h1", "h2"} {
			t.Run(strings.ReplaceAll(d.name, " ", "_")+"/"+host, func(t *testing.T) { dies(t, d, host) })
		}
	}
}

func dies(t *testing.T, d death, host string) {
	w := newServed(t)
	h := w.net.Host(host)
	rules, err := h.Rules()
	require.NoError(t, err)
	patient := settings{Handshake: "1s"}
	w.upBoth(patient)
	g := w.gateways[h]
	idle, active := w.carryTwelve(t)

	storm, err := w.h1.StartApp("connect", "-count", "400", "-gap", "2ms", "-to", w.h2.AddrPort4(holdPort).String())
	require.NoError(t, err)
	storm6, err := w.h1.StartApp("connect", "-count", "400", "-gap", "2ms", "-to", w.h2.AddrPort6(holdPort).String())
	require.NoError(t, err)
	time.Sleep(150 * time.Millisecond)
	start := time.Now()
	d.do(g)
	time.Sleep(250*time.Millisecond - time.Since(start))
	e := w.mustApp(w.h1, "connect", "-count", "20", "-to", w.h2.AddrPort4(echoPort).String())
	require.Less(t, e.Micros, d.late.Microseconds(), "a connection begun after it: %+v", e)
	if d.name != "stop daemon" || host == "h1" {
		require.Less(t, e.MedianMicros, int64(900_000), "is native at once, and not by a retry")
		t.Logf("%s on %s: begun later, the median of connect() is %d µs", d.name, host, e.MedianMicros)
	}
	awaitResets(t, idle, active, start, d.carried)
	for _, p := range []*testnet.Proc{storm, storm6} {
		e := result(t, p)
		if e.Failed != 0 { // no attempt fails
			require.True(t, e.Failed == 1 && w.justConnected(h, e), "%+v", e)
		}
		require.Less(t, e.Micros, d.late.Microseconds(), "%+v", e)
		t.Logf("%s on %s: slowest connect() %d ms, median %d µs", d.name, host, e.Micros/1000, e.MedianMicros)
	}
	nothingLeft(t, w, g, rules)
}

// justConnected reports whether an attempt has failed because it had just succeeded: a
// connection that was complete when the gateway of its host died is reset as all that it
// carried, and on a busy machine its program looks only then. The kernel tells: the reset of a
// request is ECONNREFUSED.
func (w *world) justConnected(died *testnet.Host, e apps.Event) bool {
	return died == w.h1 && e.Errno == "ECONNRESET"
}

// carryTwelve opens twelve idle and twelve active connections, half of them on
// each family, and waits until they are carried. On a slow machine some are native: then
// others take the place of all.
func (w *world) carryTwelve(t *testing.T) (idle *testnet.Proc, active []*testnet.Proc) {
	t.Helper()
	for patience := time.Now().Add(time.Minute); ; {
		idle, active = w.openTwelve(t)
		if w.carrying(func(n int) bool { return n >= 24 }) {
			return idle, active
		}
		require.True(t, time.Now().Before(patience), "24 flows")
		for _, p := range append(active, idle) {
			require.NoError(t, p.Kill())
			<-p.Done()
		}
		require.True(t, w.carrying(func(n int) bool { return n == 0 }), "none of those that have ended")
		w.flush()
	}
}

// carrying reports whether both gateways come to carry as many connections as they should
// within a few seconds.
func (w *world) carrying(should func(n int) bool) bool {
	w.t.Helper()
	for end := time.Now().Add(5 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		enough := true
		for _, g := range w.gateways {
			enough = enough && should(g.status().Flows[w.via])
		}
		if enough || time.Now().After(end) {
			return enough
		}
	}
}

func (w *world) openTwelve(t *testing.T) (idle *testnet.Proc, active []*testnet.Proc) {
	t.Helper()
	idle, err := w.h1.StartApp("hold", "-count", "12", "-to", w.h2.AddrPort6(echoPort).String())
	require.NoError(t, err)
	for i := range 12 {
		to := w.h2.AddrPort4(echoPort)
		if i%2 == 1 {
			to = w.h2.AddrPort6(echoPort)
		}
		p, err := w.h1.StartApp("ping", "-count", "1000000", "-gap", "5ms", "-to", to.String())
		require.NoError(t, err)
		active = append(active, p)
	}
	return idle, active
}

// awaitResets checks that every carried connection ends by a reset in time.
func awaitResets(t *testing.T, idle *testnet.Proc, active []*testnet.Proc, start time.Time, limit time.Duration) {
	t.Helper()
	ctx, cancel := context.WithDeadline(t.Context(), start.Add(limit+15*time.Second))
	defer cancel()
	ended, err := idle.WaitEvents(ctx, 12, func(e apps.Event) bool { return e.Event == "ended" })
	require.NoError(t, err, "idle connections: %d of 12 ended", len(ended))
	took := time.Since(start)
	for _, e := range ended {
		require.Equal(t, "ECONNRESET", e.Errno, "%+v", e)
	}
	for _, p := range active {
		e := result(t, p)
		require.Contains(t, []string{"ECONNRESET", "EPIPE"}, e.Errno, "%+v", e)
	}
	t.Logf("idle connections had ended after %v, all after %v", took, time.Since(start))
	require.Less(t, took, limit)
}

// result waits for the end of a client.
func result(t *testing.T, p *testnet.Proc) apps.Event {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	es, err := p.WaitEvents(ctx, 1, func(e apps.Event) bool { return e.Event == "result" })
	require.NoError(t, err)
	return es[0]
}

// nothingLeft checks that all of the gateway is gone from its host, and that
// cleanup works without it, twice.
func nothingLeft(t *testing.T, w *world, g *gw, rules []string) {
	t.Helper()
	require.Eventually(t, func() bool { return len(g.processes()) == 0 }, 30*time.Second, 50*time.Millisecond, "processes left: %v", g.processes())
	for range 2 {
		out, err := g.h.Run(t.Context(), binary, "cleanup", "-c", g.config)
		require.NoError(t, err, out)
	}
	// The kernel takes the namespace of the legs apart after its last process.
	require.Eventually(t, func() bool {
		links, err := g.h.Links()
		return err == nil && slices.Equal(links, []string{"lo", "eth0"})
	}, 30*time.Second, 20*time.Millisecond, "devices left")
	now, err := g.h.Rules()
	require.NoError(t, err)
	require.Equal(t, sorted(rules), sorted(now))
	out, err := g.h.Run(t.Context(), "bpftool", "net", "show")
	require.NoError(t, err, out)
	require.NotContains(t, out, "smcgw_", "programs of ours")
	w.mustApp(w.h1, "ping", "-to", w.h2.AddrPort4(echoPort).String())
	w.up(g.h, settings{})
	w.flush() // what they remember of the death
	w.comesToCarry(w.h2.AddrPort6(echoPort).String(), w.flush)
}

func sorted(s []string) []string {
	s = slices.Clone(s)
	slices.Sort(s)
	return s
}

// TestDiesGuardian: the daemon goes on without its guardian, gets a new one, whatever the
// configuration file is by then, and that one does its duty.
func TestDiesGuardian(t *testing.T) {
	t.Parallel()
	w := newServed(t)
	g := w.up(w.h1, settings{})
	w.up(w.h2, settings{})
	idle, active := w.carryTwelve(t)
	daemon := g.daemon()
	good, err := os.ReadFile(g.config)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(g.config, []byte("mdoe: enforce\n"), 0o600))
	g.signal(g.proc.Pid(), syscall.SIGKILL)
	require.Eventually(t, func() bool {
		before := g.processes()
		time.Sleep(2500 * time.Millisecond) // longer than a guardian waits for a beat
		return slices.ContainsFunc(g.processes(), func(pid int) bool {
			return pid != daemon && pid != g.proc.Pid() && slices.Contains(before, pid)
		})
	}, 30*time.Second, 20*time.Millisecond, "a new guardian, which needs no file and stays")
	require.NoError(t, os.WriteFile(g.config, good, 0o600))
	require.Equal(t, 24, g.status().Flows[w.via], "connections are carried on")
	e := w.mustApp(w.h1, "ping", "-count", "10", "-to", w.h2.AddrPort4(echoPort).String())
	w.carriedBy(e, w.via)

	start := time.Now()
	g.signal(daemon, syscall.SIGKILL)
	awaitResets(t, idle, active, start, 10*time.Second)
	require.Eventually(t, func() bool { return len(g.processes()) == 0 }, 30*time.Second, 50*time.Millisecond,
		"the guardian and all others are gone")
	require.EventuallyWithT(t, func(c *assert.CollectT) { // the kernel ends the legs' namespace behind the keeper
		links, err := w.h1.Links()
		require.NoError(c, err)
		require.Equal(c, []string{"lo", "eth0"}, links)
	}, 30*time.Second, 20*time.Millisecond)
}
