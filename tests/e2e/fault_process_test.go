package e2e

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/admin"
	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/lab/matrix"
	"github.com/smcgw/smcgw/lab/testnet"
)

// processFault is what happens to the processes of a gateway.
type processFault struct {
	name   string
	do     func(t *testing.T, f *faultWorld)
	resets time.Duration // when what is carried must have been reset where it died; 0: it goes on
	status int           // exit status of the guardian that was started; -1: killed
}

var processFaults = []processFault{
	{"kill_daemon", func(_ *testing.T, f *faultWorld) { f.g.kill(f.daemon) }, prompt, 1},
	{"kill_both", func(_ *testing.T, f *faultWorld) { f.g.kill(f.g.proc.Pid(), f.daemon) }, prompt, -1},
	{"guardian_first", func(_ *testing.T, f *faultWorld) { f.g.kill(f.daemon) }, prompt, -1},
	{"stop_daemon", func(_ *testing.T, f *faultWorld) { f.g.signal(f.daemon, syscall.SIGSTOP) }, stuck + prompt, 1},
	{"clean_stop", func(_ *testing.T, f *faultWorld) { f.g.signal(f.g.proc.Pid(), syscall.SIGTERM) }, prompt, 0},
	// The machine is paused, or gives the gateway no time; no process is killed.
	{"freeze_both", func(_ *testing.T, f *faultWorld) {
		f.g.signal(f.g.proc.Pid(), syscall.SIGSTOP)
		f.g.signal(f.daemon, syscall.SIGSTOP)
	}, 0, 0},
}

// processCell is one cell of the matrix: a fault, the host on which it happens, and the carrier. Each cell has
// connections in every state.
type processCell struct {
	processFault
	host string
	via  report.Carrier
}

func processCells() (cells []processCell) {
	for _, f := range processFaults {
		for _, host := range []string{"h1", "h2"} {
			for _, via := range []report.Carrier{report.CarrierShm, report.CarrierSoft, report.CarrierRelay} {
				cells = append(cells, processCell{f, host, via})
			}
		}
	}
	return cells
}

func (c processCell) String() string {
	return c.name + "/" + map[string]string{"h1": "client", "h2": "server"}[c.host] + "/" + strings.TrimPrefix(string(c.via), "rdma-")
}

// TestFaultProcess ends or stops the processes of a gateway in every way while connections are in every state. Those
// that are connecting must connect, natively by the next retransmission at the latest; those that come later must
// connect as fast as native ones; those that are carried must be reset in time at both ends; and nothing may be left
// behind. A connection that the server's program may have accepted waits for a client's gateway that may go on, and
// ends with one that stops.
func TestFaultProcess(t *testing.T) {
	t.Parallel()
	total := newTally(t)
	for _, c := range matrix.Cells(t, processCells(), 3) {
		t.Run(c.String(), func(t *testing.T) { testFaultProcess(t, c, total) })
	}
}

// faultWorld is a world in which a gateway is about to be hit.
type faultWorld struct {
	*world
	tally  *tally
	c      processCell
	host   *testnet.Host
	g      *gw
	daemon int
	hit    time.Time
	unable func() time.Time                // see gw.hit
	admins map[*testnet.Host]*admin.Client // one each: the gateway limits their connections
	asked  *admin.Client                   // asks g for states
}

func testFaultProcess(t *testing.T, c processCell, total *tally) {
	w := newWorld(t, testnet.Config{})
	w.via = c.via
	f := &faultWorld{world: w, tally: total, c: c, host: w.net.Host(c.host)}
	if c.via == report.CarrierRelay { // the carrier is there, but its packets do not get through
		w.via = report.CarrierSoft
		require.NoError(t, w.net.SetBox(f.box()))
	}
	before := w.residue(f.host)
	s := ownSettings()
	s.Carriers = strings.TrimPrefix(string(w.via), "rdma-")
	if c.via == report.CarrierRelay {
		s.NegativeCache = "1s" // otherwise connections after the first are native for a while
	}
	steps := heldAt(c.host)
	s.Env = []string{holdEnvironment(steps)}
	f.g = w.upDetached(f.host, s)
	s.Env = nil
	if f.host == w.h1 {
		w.upDetached(w.h2, s)
	} else {
		w.upDetached(w.h1, s)
	}
	f.daemon = f.g.daemon()
	w.via = c.via
	kernel := kernelObjects(t, f.daemon)
	require.NotEmpty(t, kernel)
	if c.name == "guardian_first" {
		f.replaceGuardian(t)
	}

	carried := f.carry(t)
	var storm *caller
	if c.via != report.CarrierRelay {
		storm = w.newCaller(t, ownPort+1)
		time.Sleep(300 * time.Millisecond)
	}
	f.asked = f.g.client()
	held := f.hold(t, steps)
	if storm == nil { // its connections are refused repeatedly, which would make the held ones native
		f.flush()
		storm = w.newCaller(t, ownPort+1)
		time.Sleep(100 * time.Millisecond)
	}
	natively := w.newCaller(t, ownPort+ownPorts) // the policy does not select its ports
	total.faults(1)
	f.hit, f.unable = f.g.hit(func() { c.do(t, f) }, c.resets > 0 && c.status == 0)

	f.connected(t, held)
	if c.resets == 0 {
		f.goesOn(t, carried, held)
	} else {
		f.ended(t, carried, held)
	}
	time.Sleep(time.Until(f.hit.Add(c.resets + stale + time.Second)))
	require.Eventually(t, func() bool { return storm.since(f.hit.Add(c.resets+stale)) > 20 }, 30*time.Second, 20*time.Millisecond)
	attempts, native := storm.end(), natively.end()
	if c.resets == 0 {
		f.g.signal(f.g.proc.Pid(), syscall.SIGTERM)
		f.g.exited(t, 0)
		for _, h := range held {
			if h.at.spoken {
				f.handedOver(t, h)
			}
		}
	} else {
		f.g.exited(t, c.status)
	}
	f.checkStorm(t, attempts, native)
	f.clean(t, before, kernel, held)
}

// box returns what the network does to soft's datagrams: it loses all if only the relay must carry.
func (f *faultWorld) box() testnet.Box {
	if f.c.via != report.CarrierRelay {
		return testnet.Box{}
	}
	return testnet.Box{UDP: testnet.Datagrams{Port: rdmaPort, Loss: 1000}}
}

// replaceGuardian kills the guardian and waits for the next one.
func (f *faultWorld) replaceGuardian(t *testing.T) {
	t.Helper()
	old := f.g.proc.Pid()
	f.g.signal(old, syscall.SIGKILL)
	require.Eventually(t, func() bool {
		for _, pid := range f.g.processes() {
			if pid != f.daemon && pid != old {
				return true
			}
		}
		return false
	}, 30*time.Second, 20*time.Millisecond, "a new guardian")
	time.Sleep(300 * time.Millisecond) // until it has been handed what it keeps
}

// ended checks that what is carried ends with resets, in time, at both ends, and never with anything that looks like
// the end of a stream.
func (f *faultWorld) ended(t *testing.T, carried []*watched, held []*heldConn) {
	t.Helper()
	here, peer := f.c.resets, f.knownDead()
	slowest := map[bool]time.Duration{}
	check := func(what string, e ended) {
		require.Contains(t, []string{"ECONNRESET", "EPIPE"}, e.how, "%s of %s", e.side, what)
		died, limit, took := (e.side == "client") == (f.host == f.h1), peer, e.at.Sub(f.hit)
		if died {
			limit = here
		}
		slowest[died] = max(slowest[died], took)
		require.Less(t, took, limit+slack, "%s of %s", e.side, what)
	}
	for _, c := range carried {
		for _, e := range c.over(t, peer+3*slack) {
			check(c.name, e)
		}
		f.tally.add(1, c.bytes.Load(), 0)
	}
	for _, h := range held {
		if !h.at.connected {
			continue
		}
		for range 2 {
			select {
			case e := <-h.ends:
				check("held at "+h.at.step, e)
			case <-time.After(peer + 3*slack):
				require.FailNow(t, "a silent hang", "held at %s", h.at.step)
			}
		}
		f.tally.add(1, 0, 0)
	}
	t.Logf("%s: what was carried had ended after %v and, at the peer, %v; promised are %v and %v",
		f.c, slowest[true], slowest[false], here, peer)
}

// knownDead returns when the peer of a gateway must have reset what both carried. Over shared memory it learns of any
// death. Elsewhere a gateway that ends in order says so, and the peer has to probe for other deaths: soft does, and
// for the relay, whose records carry no keepalive, TCP.
func (f *faultWorld) knownDead() time.Duration {
	if f.c.via == report.CarrierShm || f.c.status == 0 {
		return f.c.resets
	}
	return noHangUp
}

// goesOn checks that a gateway that was stopped and goes on harms neither what it carries nor what went on without it.
func (f *faultWorld) goesOn(t *testing.T, carried []*watched, held []*heldConn) {
	t.Helper()
	frozen := time.Since(f.hit)
	for _, pid := range []int{f.g.proc.Pid(), f.daemon} {
		f.g.signal(pid, syscall.SIGCONT)
	}
	require.Eventually(t, func() bool {
		_, err := f.g.client().Status(t.Context())
		return err == nil
	}, 30*time.Second, 20*time.Millisecond)
	time.Sleep(3 * time.Second) // longer than a guardian waits for a beat
	require.Equal(t, f.daemon, f.g.daemon(), "nobody was killed")
	for _, h := range held {
		if !h.at.connected && !h.at.spoken {
			f.talk(t, h)
		}
	}
	lost := 0
	for _, c := range carried {
		if !c.alive() && f.c.via == report.CarrierSoft && frozen > 3*time.Second {
			lost++ // a queue pair is given up once its peer is silent for so long
			continue
		}
		require.True(t, c.alive(), "%s", c.name)
		f.tally.add(1, c.bytes.Load(), 0)
		c.close()
	}
	t.Logf("%s: frozen for %v, %d of %d carried connections were given up by the peer", f.c, frozen, lost, len(carried))
}

// checkStorm checks that no attempt failed, that no more took longer than can be explained, and that those begun when
// the programs had noticed were as fast as native ones. It does not count as many as were late natively: then the
// machine is late.
func (f *faultWorld) checkStorm(t *testing.T, attempts, native []attempt) {
	t.Helper()
	nativeLate := 0
	for _, a := range native {
		require.NoError(t, a.err, "native, begun %v after the fault", a.begun.Sub(f.hit))
		if a.took > 2*prompt {
			nativeLate++
		}
	}
	reset, failed, late, lost, after, afterLate := 0, 0, 0, 0, 0, 0
	var slowest, settled time.Duration
	unable := f.unable()
	for _, a := range attempts {
		if a.wasConnected(unable) {
			reset++
			continue
		}
		if a.err != nil {
			failed++
			t.Errorf("an attempt begun %v after the fault, after %v: %v", a.begun.Sub(f.hit), a.took, a.err)
			continue
		}
		slowest = max(slowest, a.took)
		if a.took > withRetry {
			late++
		}
		if a.took > whenComplete {
			lost++
		}
		if a.begun.Sub(f.hit) > stale {
			after++
			settled = max(settled, a.took)
			if a.took > 2*prompt {
				afterLate++
			}
		}
	}
	f.tally.add(int64(len(attempts)), 0, int64(failed))
	t.Logf("%s: %d attempts, %d reset as soon as they were connected, %d late, %d lost, the slowest %v; %d later ones, %d late, "+
		"the slowest %v; native ones: %d, %d late", f.c, len(attempts), reset, late, lost, slowest, after, afterLate, settled, len(native), nativeLate)
	require.LessOrEqual(t, reset, callers, "only those whose caller had not come to look")
	if f.c.resets > 0 {
		require.Less(t, slowest, slowestCall)
		require.LessOrEqual(t, lost, callers+nativeLate, "longer than anything may take")
		require.LessOrEqual(t, late, callers+few(len(attempts))/2+nativeLate, "only those that were completing")
		require.LessOrEqual(t, afterLate, few(after)+nativeLate, "begun when the programs had noticed")
	}
}

// clean checks that nothing of the gateway is left, before and after a cleanup, and that another one carries.
func (f *faultWorld) clean(t *testing.T, before residue, kernel map[string][]int, held []*heldConn) {
	t.Helper()
	require.Eventually(t, func() bool { return len(f.g.processes()) == 0 }, 30*time.Second, 50*time.Millisecond)
	require.Eventually(t, func() bool { return len(stillThere(t, kernel)) == 0 }, 30*time.Second, 100*time.Millisecond,
		"programs, links and maps: %v", kernel)
	var now footprint
	require.Eventually(t, func() bool {
		now = f.footprint(f.host)
		return len(now.programs) == 0 && slices.Equal(now.links, before.links)
	}, 30*time.Second, 50*time.Millisecond, "what changes traffic is gone: %+v", &now)
	for i := range 2 {
		out, err := f.host.Run(t.Context(), binary, "cleanup", "-c", f.g.config)
		require.NoError(t, err)
		if i > 0 {
			require.Contains(t, out, "nothing is left")
		}
	}
	for _, h := range held {
		_ = h.ln.Close()
	}
	after := f.residue(f.host)
	require.LessOrEqual(t, after.rendezvous, 1, "the other gateway has one")
	after.rendezvous = before.rendezvous
	require.Equal(t, before, after)
	again := f.upDetached(f.host, ownSettings().with(f.via))
	_, err := f.host.Run(t.Context(), binary, "cleanup", "-c", again.config)
	require.Error(t, err, "cleanup refuses while a daemon lives")
	f.serve(f.h2)
	f.flush() // forget what they remember of the fault
	for _, v6 := range []bool{false, true} {
		e := f.carried(t, f.h1, f.at(f.h2, v6, echoPort).String())
		f.tally.add(1, e.Sent+e.Received, 0)
	}
	again.signal(again.proc.Pid(), syscall.SIGTERM)
	again.exited(t, 0)
}

// with returns the settings of a world in which via carries.
func (s settings) with(via report.Carrier) settings {
	if via == report.CarrierRelay {
		via = report.CarrierSoft
	}
	s.Carriers = strings.TrimPrefix(string(via), "rdma-")
	return s
}

var errWrongBytes = errors.New("wrong bytes")

// ask sends n bytes of the pattern to something that echoes them, and verifies the echo.
func ask(conn interface {
	Read([]byte) (int, error)
	Write([]byte) (int, error)
}, n int,
) error {
	want, got := make([]byte, n), make([]byte, n)
	pattern(want, 0)
	failed := make(chan error, 1)
	go func() {
		_, err := conn.Write(want)
		failed <- err
	}()
	for off := 0; off < n; {
		k, err := conn.Read(got[off:])
		if errors.Is(err, io.EOF) { // a reset reads as EOF after the write has taken its error
			err = cmp.Or(<-failed, err)
		}
		if err != nil {
			return fmt.Errorf("read after %d bytes: %w", off, err)
		}
		off += k
	}
	if err := <-failed; err != nil {
		return err
	}
	if string(want) != string(got) {
		return errWrongBytes
	}
	return nil
}
