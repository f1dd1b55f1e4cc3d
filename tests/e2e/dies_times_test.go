package e2e

import (
	"errors"
	"os/exec"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/lab/apps"
)

// The times of docs/design/takeover.md "When the gateway dies". Measured times are logged; required ones leave slack for
// a machine that is busy with other things.
const (
	prompt       = 200 * time.Millisecond // to be native and untouched, or reset
	withRetry    = 1100*time.Millisecond + 2*prompt
	whenComplete = 2100*time.Millisecond + 2*prompt
	stale        = 250 * time.Millisecond // until the programs notice that the heartbeat stopped
	stuck        = 2 * time.Second        // until the guardian kills a stopped daemon
	noHangUp     = 5 * time.Second        // until a peer that no hang-up reports is known to be dead
	slack        = 10 * time.Second
	slowestCall  = 6 * time.Second // of a connect(), including two retransmissions of its own
)

// few returns how many of n attempts may be late on such a machine.
func few(n int) int { return 2 + n/10 }

// hit ends a gateway and returns when that began. unable waits until the gateway has ended and returns when it could
// carry no more connections: a killed one when do returned, a stopped one at once, and one that is asked to end when
// it has ended.
func (g *gw) hit(do func(), asked bool) (begun time.Time, unable func() time.Time) {
	begun = time.Now()
	do()
	done := time.Now()
	if !asked {
		return begun, func() time.Time { return done }
	}
	ended := make(chan time.Time, 1)
	go func() {
		<-g.proc.Done()
		ended <- time.Now()
	}()
	return begun, sync.OnceValue(func() time.Time { return <-ended })
}

// wasConnected tells whether an attempt was established and then reset before its caller looked, which TestDiesUnseen
// shows plain TCP does, too. A reset before that gives ECONNREFUSED (tcp_reset in the kernel). A gateway that is
// unable establishes nothing.
func (a attempt) wasConnected(unable time.Time) bool {
	return a.begun.Before(unable) && errors.Is(a.err, syscall.ECONNRESET)
}

// exited waits for the guardian and checks its exit status; -1 means that it was killed.
func (g *gw) exited(t *testing.T, status int) {
	t.Helper()
	select {
	case <-g.proc.Done():
	case <-time.After(30 * time.Second):
		t.Fatal("the guardian goes on")
	}
	code := 0
	if exit, ok := errors.AsType[*exec.ExitError](g.proc.Wait()); ok {
		code = exit.ExitCode()
	}
	require.Equal(t, status, code)
	require.Eventually(t, func() bool { return len(g.processes()) == 0 }, 10*time.Second, 10*time.Millisecond, "nothing of it runs")
}

// comesToCarry makes connections until one is carried, and returns that one. Just after gateways start on a busy
// machine, the first ones may be late for something. again runs before each retry.
func (w *world) comesToCarry(to string, again func()) apps.Event {
	w.t.Helper()
	ping := func() apps.Event { return w.mustApp(w.h1, "ping", "-count", "20", "-to", to) }
	e := ping()
	for try := 0; try < 10 && !w.wasCarried(e); try++ {
		again()
		e = ping()
	}
	w.carriedBy(e, w.via)
	return e
}

// wasCarried waits until the gateways report a connection that has ended, and tells whether both carried it as they
// should.
func (w *world) wasCarried(e apps.Event) bool {
	w.t.Helper()
	for _, end := range []struct {
		g     *gw
		match func(report.ConnInfo) bool
	}{{w.gateways[w.h1], from(e)}, {w.gateways[w.h2], at(e)}} {
		ended := func() (found []report.ConnInfo) {
			for _, c := range end.g.everything(end.match) {
				if c.End != "" {
					found = append(found, c)
				}
			}
			return found
		}
		for last := time.Now().Add(10 * time.Second); len(ended()) == 0 && time.Now().Before(last); {
			time.Sleep(20 * time.Millisecond)
		}
		if all := ended(); len(all) == 0 || all[0].Carrier != w.via {
			return false
		}
	}
	return true
}
