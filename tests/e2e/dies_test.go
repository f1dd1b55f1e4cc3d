package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/gateway/process"
	"github.com/smcgw/smcgw/internal/procfs"
	"github.com/smcgw/smcgw/lab/apps"
	"github.com/smcgw/smcgw/lab/testnet"
)

// daemon returns the process that does a gateway's work, a child of the guardian.
func (g *gw) daemon() int {
	g.w.t.Helper()
	pids := slices.DeleteFunc(g.h.Children(g.proc.Pid()), func(pid int) bool { return !saysOnItsLine(pid, g.config) })
	require.NotEmpty(g.w.t, pids, "gateway of %s has no daemon", g.h.Name)
	return pids[0]
}

// processes returns the guardian and the daemon of a gateway. The keeper of its legs is in another namespace.
func (g *gw) processes() (pids []int) {
	return slices.DeleteFunc(g.h.Processes(), func(pid int) bool { return !saysOnItsLine(pid, g.config) })
}

// saysOnItsLine reports whether a process has a word on its command line.
func saysOnItsLine(pid int, word string) bool {
	cmd, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	return strings.Contains(string(cmd), word)
}

// keeper returns the process that makes the legs of a gateway.
func (g *gw) keeper() int { return g.inNamespace(process.LegsVerb) }

// spare returns the process that takes the keeper's place.
func (g *gw) spare() int { return g.inNamespace(process.SpareVerb) }

// inNamespace waits for a process in the namespace of the legs and returns it.
func (g *gw) inNamespace(verb string) int {
	g.w.t.Helper()
	var pids []int
	require.Eventually(g.w.t, func() bool {
		pids = slices.DeleteFunc(procfs.Children(g.proc.Pid()), func(pid int) bool { return !saysOnItsLine(pid, "\x00"+verb+"\x00") })
		return len(pids) == 1
	}, 10*time.Second, 10*time.Millisecond, "%s of %s", verb, g.h.Name)
	return pids[0]
}

// death is a way in which a gateway ends.
type death struct {
	name string
	do   func(g *gw)
}

var deaths = []death{
	{"kill daemon", func(g *gw) { g.kill(g.daemon()) }},
	{"kill both", func(g *gw) { g.kill(g.proc.Pid(), g.daemon()) }},
	{"stop daemon", func(g *gw) { g.signal(g.daemon(), syscall.SIGSTOP) }},
	{"clean stop", func(g *gw) { g.signal(g.proc.Pid(), syscall.SIGTERM) }},
}

func (g *gw) signal(pid int, s syscall.Signal) {
	g.w.t.Helper()
	require.NoError(g.w.t, syscall.Kill(pid, s))
}

// kill kills processes and waits until they have ended: on a busy machine each thread first ends its system call,
// which may establish another connection.
func (g *gw) kill(pids ...int) {
	g.w.t.Helper()
	var ends []unix.PollFd
	for _, pid := range pids {
		fd, err := unix.PidfdOpen(pid, 0)
		require.NoError(g.w.t, err)
		defer unix.Close(fd)
		ends = append(ends, unix.PollFd{Fd: int32(fd), Events: unix.POLLIN})
	}
	for _, pid := range pids {
		g.signal(pid, syscall.SIGKILL)
	}
	for i := range ends {
		for deadline := time.Now().Add(30 * time.Second); ends[i].Revents == 0; {
			if _, err := unix.Poll(ends[i:i+1], 1000); !errors.Is(err, unix.EINTR) {
				require.NoError(g.w.t, err)
			}
			require.True(g.w.t, time.Now().Before(deadline), "killed and not dead")
		}
	}
}

// justConnected tells whether an attempt failed just after it had succeeded. A connection that is complete when its
// gateway dies is reset like all carried ones, and on a busy machine its program looks only then. The errno tells the
// two apart: the reset of a request is ECONNREFUSED.
func (w *world) justConnected(died *testnet.Host, e apps.Event) bool {
	return died == w.h1 && e.Errno == "ECONNRESET"
}

// result waits for the end of a client and returns its result.
func result(t *testing.T, p *testnet.Proc) apps.Event {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	es, err := p.WaitEvents(ctx, 1, func(e apps.Event) bool { return e.Event == "result" })
	require.NoError(t, err)
	return es[0]
}

// nothingLeft checks that nothing of the gateway is left on its host, and that cleanup works without it, twice.
func nothingLeft(t *testing.T, w *world, g *gw, rules []string) {
	t.Helper()
	require.Eventually(t, func() bool { return len(g.processes()) == 0 }, 30*time.Second, 50*time.Millisecond, "processes left: %v", g.processes())
	for range 2 {
		out, err := g.h.Run(t.Context(), binary, "cleanup", "-c", g.config)
		require.NoError(t, err, out)
	}
	// The kernel removes the namespace of the legs some time after its last process ends.
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
	w.flush() // forget what they remember of the death
	w.comesToCarry(w.h2.AddrPort6(echoPort).String(), w.flush)
}

func sorted(s []string) []string {
	s = slices.Clone(s)
	slices.Sort(s)
	return s
}

// TestDiesGuardian checks that the daemon goes on without its guardian and gets a new one, whatever the configuration
// file is by then, and that the new guardian does its work.
func TestDiesGuardian(t *testing.T) {
	t.Parallel()
	w := newServed(t)
	g, _ := w.upBoth(ownSettings())
	people := w.carry(t)
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
	require.Equal(t, len(people), g.status().Flows[w.via], "connections are carried on")
	w.carriedApp(t, w.h1, "ping", "-count", "10", "-to", w.h2.AddrPort4(echoPort).String())

	for _, p := range people {
		require.True(t, p.alive(), "%s: %s", p.name, p.told())
	}
	g.signal(daemon, syscall.SIGKILL)
	for _, p := range people {
		for _, e := range p.over(t, 10*time.Second) {
			require.Contains(t, []string{"ECONNRESET", "EPIPE"}, e.how, "%s of %s", e.side, p.name)
		}
	}
	require.Eventually(t, func() bool { return len(g.processes()) == 0 }, 30*time.Second, 50*time.Millisecond,
		"the guardian and all others are gone")
	require.EventuallyWithT(t, func(c *assert.CollectT) { // the kernel removes the legs' namespace after the keeper ends
		links, err := w.h1.Links()
		require.NoError(c, err)
		require.Equal(c, []string{"lo", "eth0"}, links)
	}, 30*time.Second, 20*time.Millisecond)
}
