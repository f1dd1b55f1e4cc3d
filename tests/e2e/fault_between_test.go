package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/lab/matrix"
	"github.com/smcgw/smcgw/lab/testnet"
)

// betweenFault is something that happens to a connection between hosts, on one of them, at a random moment.
type betweenFault struct {
	name string
	how  string        // HOW of stress: what stress does itself, or what its ends may see
	ends bool          // ends the gateway
	last time.Duration // the longest time before undo
	do   func(w *betweenWorld, i int)
	undo func(w *betweenWorld, i int)
}

var betweenFaults = []betweenFault{
	{name: "nothing", how: "-"},
	{name: "program killed", how: "k"},
	{name: "program killed at an instruction", how: "i"},
	{name: "program stopped for a while", how: "s"},
	{name: "program closes", how: "c"},
	{name: "program resets", how: "r"},
	{name: "program exits", how: "x"},
	{name: "gateway killed", how: "-", ends: true, do: func(w *betweenWorld, i int) { w.gs[i].kill(w.gs[i].processes()...) }},
	{name: "daemon killed", how: "-", ends: true, do: func(w *betweenWorld, i int) { w.gs[i].kill(w.gs[i].daemon()) }},
	{name: "gateway stopped", how: "-", ends: true, do: func(w *betweenWorld, i int) { w.gs[i].signal(w.gs[i].proc.Pid(), syscall.SIGTERM) }},
	{name: "upgrade", how: "-", do: func(w *betweenWorld, i int) {
		old := w.gs[i]
		w.gs[i] = old.upgrade()
		old.ended(w.t)
	}},
	{name: "drain", how: "-", ends: true, do: func(w *betweenWorld, i int) { w.gs[i].says("drain") }},
	{
		name: "off", how: "-", last: 500 * time.Millisecond,
		do: func(w *betweenWorld, i int) { w.gs[i].says("off") }, undo: func(w *betweenWorld, i int) { w.gs[i].says("on") },
	},
	{
		name: "packets of the carrier lost", how: "-", last: 8 * time.Second,
		do: func(w *betweenWorld, i int) {
			require.NoError(w.t, w.host(i).NFT(fmt.Sprintf("table inet lost { chain in { type filter hook input priority 0; udp dport %d drop; }; }\n", rdmaPort)))
		},
		undo: func(w *betweenWorld, i int) { require.NoError(w.t, w.host(i).NFT("delete table inet lost\n")) },
	},
	{name: "control connection reset", how: "-", do: func(w *betweenWorld, i int) { w.resets(i, "( sport = :4790 or dport = :4790 )") }},
	{name: "connection reset", how: "n", do: func(w *betweenWorld, i int) {
		w.resets(i, fmt.Sprintf("( sport = :%d or dport = :%[1]d )", transferPort))
	}},
}

// resets destroys established connections of a host.
func (w *betweenWorld) resets(i int, which string) {
	w.t.Helper()
	_, err := w.host(i).Run(w.t.Context(), "ss", "-K", "-t", "state", "established", which)
	require.NoError(w.t, err)
}

func (w *betweenWorld) host(i int) *testnet.Host { return w.gs[i].h }

// stress starts the program stress with a client on h2 and a server on h1.
func (w *betweenWorld) stress(args ...string) *testnet.Proc {
	w.t.Helper()
	cmd := w.h2.Command(context.Background(), filepath.Join(w.dir, "stress"), args...)
	cmd.Env = append(w.environment(w.h2), "STRESS_RECALLS=1", "STRESS_SHOW=1", fmt.Sprintf("STRESS_HOSTS=%s %s %s %s %v %v %d",
		w.h2.NamespacePath(), w.inProcess(w.h2), w.h1.NamespacePath(), w.inProcess(w.h1), w.h1.Addr4, w.h1.Addr6, transferPort))
	p, err := w.h2.StartCmd(cmd)
	require.NoError(w.t, err)
	return p
}

// draw subjects one connection to the fault that a seed draws, and judges what its ends have seen. It tells whether
// the connection was promoted before.
func (w *betweenWorld) draw(seed uint64) (promoted bool) {
	w.t.Helper()
	rng := rand.New(rand.NewPCG(seed, 0))
	f := betweenFaults[rng.IntN(len(betweenFaults))]
	i, early := rng.IntN(2), rng.Float64()
	seconds, settled := 0.5+rng.Float64(), rng.IntN(4) > 0
	when := time.Duration(early * early * early * seconds * float64(time.Second))
	lasts := time.Duration(rng.Float64() * float64(f.last))
	how := f.how
	if rng.IntN(2) == 0 {
		how += "+" // and do what programs do with descriptors
	}
	w.library = rng.IntN(10) > 0 // it must hold natively, too
	what := fmt.Sprintf("%s=%d: %s of %s after %v for %v, settled %v, library %v", matrix.SeedVariable, seed, f.name, w.host(i).Name, when, lasts, settled, w.library)
	p := w.stress("??", "?", fmt.Sprintf("%.2f", seconds+lasts.Seconds()), fmt.Sprint(seed), "?", how, "1")
	defer func() { _ = p.Kill() }()
	within, cancel := context.WithTimeout(w.t.Context(), slowed(5*time.Minute))
	defer cancel()
	if err := p.WaitOutput(within, "begun"); err != nil {
		w.t.Errorf("%s: %v", what, err)
		return false
	}
	for end := time.Now().Add(time.Second); settled && w.library && time.Now().Before(end) && len(w.gs[i].inProcess()) == 0; {
		time.Sleep(10 * time.Millisecond)
	}
	time.Sleep(when)
	promoted = len(w.gs[i].inProcess()) > 0
	if f.do != nil {
		f.do(w, i)
	}
	if f.undo != nil {
		time.Sleep(lasts)
		f.undo(w, i)
	}
	select {
	case <-p.Done():
	case <-within.Done():
	}
	if !strings.Contains(p.Output(), "ok: rounds 1 ") {
		w.t.Errorf("%s: %s", what, p.Output())
	} else {
		w.t.Logf("%s, promoted %v: %s", what, promoted, p.Output())
	}
	if f.ends {
		g := w.gs[i]
		require.Eventually(w.t, func() bool { return len(g.processes()) == 0 }, slowed(30*time.Second), 10*time.Millisecond, what)
		w.gs[i] = w.up(g.h, w.settings)
	}
	return promoted
}

// TestFaultBetweenHosts checks that, whatever happens to a connection between hosts, no byte is lost, repeated or
// wrong, every end is one that could come natively, and each comes in time.
func TestFaultBetweenHosts(t *testing.T) {
	t.Parallel()
	testnet.Require(t, "root", "bpf", "gcc", "nft", "ss")
	const each = 20 // per world
	draws := 5
	if matrix.Whole() {
		draws = 1000
	}
	seed := matrix.Seed(t)
	var promoted atomic.Int64
	t.Cleanup(func() {
		t.Logf("%d of %d were promoted before", promoted.Load(), draws)
		if matrix.Whole() { // of a few draws there may be none
			require.NotZero(t, promoted.Load())
		}
	})
	for first := 0; first < draws; first += each {
		last := min(first+each, draws) - 1
		t.Run(fmt.Sprintf("from %d to %d", first, last), func(t *testing.T) {
			t.Parallel()
			w := newBetweenWorld(t, settings{Carriers: "soft", NegativeCache: "1s"})
			for i := first; i <= last; i++ {
				if w.draw(seed + uint64(i)) {
					promoted.Add(1)
				}
			}
		})
	}
}

// TestFaultBetweenHostsEnds checks that a stream ends in order while packets of the carrier are lost for longer than
// a consumer waits for news of a process that has ended.
func TestFaultBetweenHostsEnds(t *testing.T) {
	t.Parallel()
	testnet.Require(t, "root", "bpf", "gcc", "nft")
	w := newBetweenWorld(t, settings{Carriers: "soft", NegativeCache: "1s"})
	for i, modes := range []string{"bb", "es"} {
		for try := 0; !w.endsWhileLost(i, modes, matrix.Seed(t)); try++ {
			require.Less(t, try, 5, "never promoted before the end")
		}
	}
}

// endsWhileLost has a stream end while packets to a host are lost. It reports whether the stream was promoted before,
// for which it has a second.
func (w *betweenWorld) endsWhileLost(i int, modes string, seed uint64) (promoted bool) {
	w.t.Helper()
	at := slices.IndexFunc(betweenFaults, func(f betweenFault) bool { return strings.HasPrefix(f.name, "packets of the carrier") })
	f := betweenFaults[at]
	p := w.stress(modes, "4", "1.5", fmt.Sprint(seed), "0", "-", "1")
	within, cancel := context.WithTimeout(w.t.Context(), slowed(2*time.Minute))
	defer cancel()
	require.NoError(w.t, p.WaitOutput(within, "begun"))
	for end := time.Now().Add(slowed(time.Second)); !promoted && time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		promoted = len(w.gs[i].inProcess()) == 1
	}
	if promoted {
		f.do(w, i)
		time.Sleep(4 * time.Second)
		f.undo(w, i)
	}
	require.NoError(w.t, p.WaitOutput(within, "ok: rounds 1 "))
	return promoted
}
