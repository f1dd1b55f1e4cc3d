package vector

import (
	"crypto/rand"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/verbs"
	"github.com/smcgw/smcgw/verbs/shm"
)

// openVector is the only vector of a device without peers.
func openVector(t *testing.T) *Vector {
	t.Helper()
	cfg := shm.Config{Dir: t.TempDir(), PeerQuota: 16 << 20}
	_, _ = rand.Read(cfg.GatewayID[:])
	dev, err := shm.Open(cfg)
	require.NoError(t, err)
	v, err := New(Config{Dev: dev, Depth: 64, Polling: 20 * time.Microsecond, CQErrors: new(atomic.Uint64)}, 0)
	require.NoError(t, err)
	go v.Run()
	t.Cleanup(func() {
		v.Stop()
		require.NoError(t, dev.Close())
	})
	return v
}

// What is left for the holder of the token is always done, whichever goroutine
// holds it and however it leaves.
func TestVectorLeavesNothing(t *testing.T) {
	v := openVector(t)
	m := &counter{}
	m.node.Member = m
	var all, others sync.WaitGroup
	var over atomic.Bool
	const rounds = 300
	for range 3 {
		all.Go(func() {
			for range rounds {
				before := m.served.Load()
				v.Wants(&m.node)
				v.Kick()
				for m.served.Load() == before && !over.Load() {
					time.Sleep(time.Microsecond)
				}
			}
		})
	}
	jobs := 0
	all.Go(func() {
		for range rounds {
			_ = v.Do(func() { jobs++ })
		}
	})
	others.Go(func() {
		for !over.Load() {
			v.Spin(never{})
		}
	})
	others.Go(func() {
		for !over.Load() {
			if v.TryEnter() {
				v.Leave()
			}
			time.Sleep(time.Microsecond)
		}
	})
	ended := make(chan struct{})
	go func() { all.Wait(); close(ended) }()
	select {
	case <-ended:
	case <-time.After(30 * time.Second):
		t.Error("something was left")
	}
	over.Store(true)
	<-ended
	others.Wait()
	require.Equal(t, rounds, jobs)
}

// counter is a member that counts.
type counter struct {
	node   Node
	served atomic.Int64
}

func (*counter) Complete(*verbs.WC) {}
func (c *counter) Service()         { c.served.Add(1) }

type never struct{}

func (never) Ready() bool { return false }

// Polling is tried rarely after long waits and always after a short one.
func TestBackoff(t *testing.T) {
	var b backoff
	tries := func(n int) (tried int) {
		for range n {
			if b.try() {
				tried++
			}
		}
		return tried
	}
	require.Equal(t, 10, tries(10))
	for range fruitlessLimit - 1 {
		b.waited(true)
	}
	require.Equal(t, 10, tries(10))
	for range 20 {
		b.waited(true)
	}
	require.Zero(t, tries(maxSkips-1))
	require.NotZero(t, tries(2))
	for range 3 {
		b.waited(true)
	}
	b.waited(false)
	require.Equal(t, 10, tries(10))
	for range eagerTurns - 1 {
		b.waited(false)
	}
	require.True(t, b.eager.Load())
	for range 30 {
		b.waited(true)
	}
	b.polled()
	require.Equal(t, 10, tries(10))
}

// A member that wants more service while it is served gets a whole turn first, even on a vector that is attended.
func TestVectorServesAgain(t *testing.T) {
	v := openVector(t)
	m := &again{v: v}
	m.node.Member = m
	require.NoError(t, v.Do(func() { v.Add(0xffffff, m) }))
	require.Eventually(t, v.TryEnter, 30*time.Second, time.Microsecond)
	v.attended = true
	v.stay()
	v.Wants(&m.node)
	v.Kick()
	require.Eventually(t, func() bool { return m.seen.Load() }, 30*time.Second, time.Millisecond)
	require.NoError(t, v.Do(func() { v.Remove(0xffffff) }))
}

// again wants service until the completion queue has been polled.
type again struct {
	v    *Vector
	node Node
	seen atomic.Bool
}

func (*again) Complete(*verbs.WC) {}

func (a *again) Service() {
	if !a.v.Drained {
		a.v.Wants(&a.node)
		return
	}
	a.seen.Store(true)
}

// A goroutine that stays and does not come back is replaced by the vector's
// goroutine, whenever that was woken before.
func TestVectorStayIsGuarded(t *testing.T) {
	v := openVector(t)
	m := &again{v: v}
	require.NoError(t, v.Do(func() { v.Add(0xffffff, m) }))
	for _, wakeAt := range []time.Duration{-time.Millisecond, 0, guardTime / 2, time.Hour} {
		require.Eventually(t, v.TryEnter, 30*time.Second, time.Microsecond)
		if v.wakeAt = time.Now().Add(wakeAt); wakeAt > 0 {
			v.setTimer(wakeAt)
		}
		v.stay()
		require.Eventually(t, func() bool {
			if !v.TryEnter() {
				return false
			}
			defer v.Leave()
			return !v.attended
		}, 30*time.Second, time.Millisecond)
	}
	require.NoError(t, v.Do(func() { v.Remove(0xffffff) }))
}
