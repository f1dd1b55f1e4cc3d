package inprocess

import (
	"context"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	inproc "github.com/smcgw/smcgw/inprocess"
	"github.com/smcgw/smcgw/inprocess/broker"
	"github.com/smcgw/smcgw/lab/matrix"
	"github.com/smcgw/smcgw/tests/inprocess/world"
)

// seconds returns d, or ten times as much in a whole matrix.
func seconds(d float64) float64 {
	if matrix.Whole() {
		return 10 * d
	}
	return d
}

// TestEveryByte checks every byte of both directions at once, with all ways of waiting at each end, over all families,
// also with small windows, and with the switch thrown at random.
func TestEveryByte(t *testing.T) {
	program := shared.For(t).Program("stress")
	seed := matrix.Seed(t)
	r := rand.New(rand.NewPCG(seed, 1))
	for i, modes := range []string{"bb", "ll", "ee", "oo", "pp", "ss", "qq", "LL", "BB", "bl", "eb", "pe", "so", "OQ"} {
		family, window, switches := []string{"4", "6", "m"}[i%3], []string{"0", "4096"}[i%2], i%3 == 1
		t.Run(modes+family, func(t *testing.T) {
			w := newWorld(t, broker.Thresholds{Calls: 1, Spin: time.Duration(i%2) * 20 * time.Microsecond})
			ctx, cancel := context.WithCancel(context.Background())
			var toggles sync.WaitGroup
			defer toggles.Wait()
			defer cancel()
			if switches {
				q := rand.New(rand.NewPCG(seed, uint64(i)))
				toggles.Go(func() { w.Toggle(ctx, q, 20*time.Millisecond) })
			}
			said, err := run(w, 2*time.Minute, nil, program, modes, family, strconv.FormatFloat(seconds(0.7), 'f', 2, 64), strconv.FormatUint(r.Uint64N(1<<32), 10), window)
			require.NoError(t, err, said)
			require.NotZero(t, w.Moved(), "native: %s", said)
		})
	}
}

// TestEndsThatAreKilled checks that what the other end reads is a prefix of what was sent, and that it reaches the end.
func TestEndsThatAreKilled(t *testing.T) {
	program := shared.For(t).Program("stress")
	for _, how := range []string{"k", "s"} {
		t.Run(how, func(t *testing.T) {
			rounds, seed := strconv.Itoa(int(seconds(30))), strconv.FormatUint(matrix.Seed(t)%(1<<32), 10)
			args := []string{"??", "4", "0.1", seed, "0", how, rounds}
			said, err := run(nil, 5*time.Minute, nil, program, args...)
			require.NoError(t, err, "natively: %s", said)
			w := newWorld(t, broker.Thresholds{Calls: 1})
			said, err = run(w, 5*time.Minute, []string{"STRESS_SHOW=1"}, program, args...)
			require.NoError(t, err, said)
			require.NotZero(t, w.Moved())
		})
	}
}

// TestHostilePeers checks that a peer that writes nonsense into the shared memory harms no connection but its own.
func TestHostilePeers(t *testing.T) {
	w := newWorld(t, broker.Thresholds{Calls: 1})
	said, err := run(w, 5*time.Minute, nil, shared.For(t).Program("hostile"), "4", strconv.Itoa(int(seconds(60))), strconv.FormatUint(matrix.Seed(t)%(1<<32), 10))
	require.NoError(t, err, said)
	require.NotContains(t, said, "promoted 0", "no peer was promoted, so none was hostile")
}

// refuses is a policy that selects nothing, for a reason.
type refuses struct{ why atomic.Uint32 }

func (r *refuses) Select(broker.Question) inproc.Why { return inproc.Why(r.why.Load()) }

// TestPolicyThatChanges checks that a refused connection is asked for again at its next call after the policy changes,
// however many calls it has made before, and soon where nothing announces that the reason is gone.
func TestPolicyThatChanges(t *testing.T) {
	program := shared.For(t).Program("stress")
	var policy, full refuses
	policy.why.Store(uint32(inproc.WhyPolicy))
	full.why.Store(uint32(inproc.WhyLimit))
	for name, change := range map[string][2]func(w *world.World){
		"policy": {func(w *world.World) { w.SetPolicy(&policy, broker.Thresholds{Calls: 1}) }, func(w *world.World) { w.SetPolicy(nil, broker.Thresholds{Calls: 1}) }},
		"switch": {func(w *world.World) { w.SetOff(true) }, func(w *world.World) { w.SetOff(false) }},
		"limit":  {func(w *world.World) { w.SetPolicy(&full, broker.Thresholds{Calls: 1}) }, func(*world.World) { full.why.Store(uint32(inproc.WhyNone)) }},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, broker.Thresholds{Calls: 1})
			change[0](w)
			time.AfterFunc(1200*time.Millisecond, func() { change[1](w) })
			said, err := run(w, time.Minute, nil, program, "bb", "4", "5", "1") // long enough for a change that a busy machine makes late
			require.NoError(t, err, said)
			require.NotZero(t, w.Moved())
		})
	}
}

// TestPeersThatStall checks that no peer can make a call wait that must not.
func TestPeersThatStall(t *testing.T) {
	program := shared.For(t).Program("stall")
	for _, how := range []string{"tokens", "frozen", "stopped"} {
		t.Run(how, func(t *testing.T) {
			for _, w := range []*world.World{nil, newWorld(t, broker.Thresholds{Calls: 1})} {
				said, err := run(w, time.Minute, nil, program, how)
				require.NoError(t, err, said)
				require.Equal(t, "ok\n", said)
			}
		})
	}
}

// TestForeignReader checks that a connection stays native if the program has read from it past the library.
func TestForeignReader(t *testing.T) {
	for args, want := range map[string]string{"libc": "promoted\n", "raw": "native\n"} {
		w := newWorld(t, broker.Thresholds{Calls: 1})
		said, err := run(w, time.Minute, nil, shared.For(t).Program("foreign"), args)
		require.NoError(t, err, said)
		require.Equal(t, want, said)
		require.Equal(t, args == "libc", w.Moved() > 0)
	}
}
