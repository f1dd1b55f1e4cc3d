package e2e

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/faults"
	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/lab/apps"
	"github.com/smcgw/smcgw/lab/matrix"
	"github.com/smcgw/smcgw/lab/testnet"
)

// claimWorld is a host whose gateway another process takes over from, with programs that have done the same work
// before without gateways.
type claimWorld struct {
	*world
	tally   *tally
	native  []apps.Event
	rules   []string // policy routing rules of the host, without gateways
	old     *gw
	held    *testnet.Proc
	running []*testnet.Proc
}

// newClaimWorld starts idle connections and busy programs. The kill switch of a stateless gateway has no file.
func newClaimWorld(t *testing.T, host string, stateless bool) *claimWorld {
	t.Helper()
	w := &claimWorld{world: newWorld(t, testnet.Config{}), tally: newTally(t)}
	w.serve(w.h2)
	h := w.net.Host(host)
	var err error
	w.rules, err = h.Rules()
	require.NoError(t, err)
	for _, p := range w.programs(t) {
		w.native = append(w.native, result(t, p))
	}
	if stateless {
		require.NoError(t, os.WriteFile(filepath.Join(w.dir, host+".state"), nil, 0o600))
	}
	for _, other := range []*testnet.Host{w.h1, w.h2} {
		if other != h {
			w.up(other, settings{})
		}
	}
	w.old = w.upDetached(h, settings{})
	w.held = w.holdCarried(t, w.old, 4)
	w.running = w.programs(t)
	return w
}

// programs starts the busy programs.
func (w *claimWorld) programs(t *testing.T) (list []*testnet.Proc) {
	t.Helper()
	to4, to6 := w.h2.AddrPort4(transferPort).String(), w.h2.AddrPort6(transferPort).String()
	for _, args := range [][]string{
		{"ping", "-count", "400", "-gap", "10ms", "-size", "20000", "-to", w.h2.AddrPort6(echoPort).String()},
		{"transfer", "-up", "300000000", "-down", "300000000", "-to", to4},
		{"churn", "-count", "300", "-parallel", "4", "-gap", "5ms", "-size", "20000", "-to", to6},
	} {
		p, err := w.h1.StartApp(args...)
		require.NoError(t, err)
		list = append(list, p)
	}
	return list
}

// goOn requires that the programs have done what they do without gateways, and that the idle connections still work.
func (w *claimWorld) goOn(t *testing.T) {
	t.Helper()
	for i, p := range w.running {
		e, native := result(t, p), w.native[i]
		require.Equal(t, [...]int64{int64(native.OK), 0, native.Sent, native.Received}, [...]int64{int64(e.OK), int64(e.Failed), e.Sent, e.Received}, "%+v", e)
		w.tally.result(e)
	}
	w.tally.result(lastPing(t, w.held))
	require.NotContains(t, w.held.Output(), `"errno"`)
}

// failed waits for the end of a gateway that could not take over.
func (g *gw) failed(t *testing.T, within time.Duration) {
	t.Helper()
	select {
	case <-g.proc.Done():
	case <-time.After(within):
		t.Fatal("the new gateway goes on")
	}
	exit, ok := errors.AsType[*exec.ExitError](g.proc.Wait())
	require.True(t, ok)
	require.Equal(t, 1, exit.ExitCode())
}

// said is what a verb has printed, and its error.
type said struct {
	out string
	err error
}

// tell runs a verb in the background.
func (g *gw) tell(ctx context.Context, args ...string) <-chan said {
	done := make(chan said, 1)
	cmd := exec.CommandContext(ctx, binary, append(args, "--socket", g.socket)...)
	go func() {
		out, err := cmd.CombinedOutput()
		done <- said{string(out), err}
	}()
	return done
}

// aside updates the socket of a gateway that another one takes over from.
func (g *gw) aside() {
	if _, err := os.Lstat(g.socket + config.DrainingSuffix); err == nil {
		g.socket += config.DrainingSuffix
	}
}

// claimCell is the step of a takeover, and its host.
type claimCell struct{ step, host string }

func claimCells() (cells []claimCell) {
	for _, step := range faults.TakeoverSteps() {
		cells = append(cells, claimCell{step, "h1"}, claimCell{step, "h2"})
	}
	return cells
}

// TestFaultUpgradeDrained checks that a gateway that is told to drain while another one takes over from it ends the
// takeover, serves what it carries to the end, and ends.
func TestFaultUpgradeDrained(t *testing.T) {
	t.Parallel()
	for _, c := range matrix.Cells(t, claimCells(), 1) {
		t.Run(c.step+"-"+c.host, func(t *testing.T) {
			w := newClaimWorld(t, c.host, false)
			next := w.old.launchSuccessor([]string{"SMCGW_DEBUG_TAKEOVER=" + c.step})
			next.logged("takeover held")
			at := w.old.socket
			w.old.aside()
			drain := w.old.tell(t.Context(), "drain", "--timeout", "5m")
			w.tally.faults(1)
			next.failed(t, 30*time.Second)
			w.old.socket = at
			require.Eventually(t, func() bool {
				st, err := w.old.client().Status(t.Context())
				return err == nil && st.Draining != nil
			}, 30*time.Second, 10*time.Millisecond, "it is found in its place again")
			e := w.mustApp(w.h1, "churn", "-count", "20", "-parallel", "4", "-size", "20000", "-to", w.h2.AddrPort4(transferPort).String())
			w.tally.result(e)
			w.goOn(t)
			last := <-drain
			require.NoError(t, last.err, last.out)
			require.True(t, strings.HasSuffix(last.out, "drained, 0 connections left\n"), last.out)
			w.old.ended(t)
			nothingLeft(t, w.world, w.old, w.rules)
			require.Zero(t, w.tally.failed())
		})
	}
}

// TestFaultUpgradeOff checks that a kill switch thrown during a takeover also applies to the new gateway, even if no
// file stores it.
func TestFaultUpgradeOff(t *testing.T) {
	t.Parallel()
	for _, host := range matrix.Cells(t, []string{"h1", "h2"}, 1) {
		t.Run(host, func(t *testing.T) {
			w := newClaimWorld(t, host, true)
			next := w.old.launchSuccessor(nil)
			next.logged("taking over")
			processes := []int{next.proc.Pid(), next.daemon()} // the guardian first, which would kill a daemon that does not beat
			for _, pid := range processes {
				next.signal(pid, syscall.SIGSTOP)
			}
			w.old.aside()
			out, err := w.old.cli("off")
			require.Error(t, err)
			require.Contains(t, out, "new connections are native from now on, but not after a restart of the gateway")
			require.Nil(t, w.old.status().Draining, "the takeover has not come to its end")
			w.tally.faults(1)
			for _, pid := range processes {
				next.signal(pid, syscall.SIGCONT)
			}
			next.logged("gateway is up")
			require.Equal(t, report.ModeOff, next.status().Mode)
			e := w.mustApp(w.h1, "ping", "-count", "20", "-to", w.h2.AddrPort4(echoPort).String())
			w.tally.result(e)
			require.Zero(t, next.status().FlowsTotal[w.via])
			w.goOn(t)
			w.old.ended(t)

			w.gateways[w.old.h] = next
			require.NoError(t, os.Remove(filepath.Join(w.dir, host+".state")))
			next.says("on")
			w.flush()
			w.tally.result(w.comesToCarry(w.h2.AddrPort6(echoPort).String(), w.flush))
			require.Zero(t, w.tally.failed())
		})
	}
}

// TestFaultUpgradeLate checks that a new gateway that does not finish in time is ended, and that the old one gets
// everything back.
func TestFaultUpgradeLate(t *testing.T) {
	t.Parallel()
	const unread = "unread" // it does not even read its configuration
	for _, c := range matrix.Cells(t, append(claimCells(), claimCell{unread, "h1"}, claimCell{unread, "h2"}), 1) {
		t.Run(c.step+"-"+c.host, func(t *testing.T) {
			w := newClaimWorld(t, c.host, false)
			w.tally.faults(1)
			if c.step == unread {
				w.replacedLate(t)
			} else {
				next := w.old.launchSuccessor([]string{"SMCGW_DEBUG_TAKEOVER=" + c.step}, "--no-guardian") // a guardian would end it sooner
				next.logged("takeover held")
				next.failed(t, 2*time.Minute)
				w.old.logged("the takeover lasts too long")
			}
			w.goOn(t)
			require.Eventually(t, func() bool { return len(w.old.processes()) == 2 }, 30*time.Second, 20*time.Millisecond, "guardian and daemon of the old one")
			w.flush()
			w.tally.result(w.comesToCarry(w.h2.AddrPort4(echoPort).String(), w.flush))
			require.Zero(t, w.tally.failed())
		})
	}
}

// replacedLate makes a reload start a gateway that waits for its configuration, as on a server that does not answer.
func (w *claimWorld) replacedLate(t *testing.T) {
	t.Helper()
	text, err := os.ReadFile(w.old.config)
	require.NoError(t, err)
	require.NoError(t, os.Remove(w.old.config))
	require.NoError(t, unix.Mkfifo(w.old.config, 0o600))
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	reload := w.old.tell(ctx, "reload", "--replace")
	require.NoError(t, os.WriteFile(w.old.config, text, 0o600)) // only the old gateway reads it
	last := <-reload
	require.Error(t, last.err)
	require.Contains(t, last.out, "the new gateway has not taken over in time")
	require.NoError(t, os.Remove(w.old.config))
	require.NoError(t, os.WriteFile(w.old.config, text, 0o600))
}
