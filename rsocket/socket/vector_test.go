package socket

import (
	"errors"
	"io"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/verbs"
)

// The shared receives of a vector grow when more arrives at once than they are, and nothing is lost.
func TestSharedQueueGrows(t *testing.T) {
	d := shmDuo(t, 1, StackConfig{})
	const conns, writes = 4, 200
	var ends [conns][2]*Conn
	for i := range ends {
		a, b := d.pair(ConnConfig{})
		soon(t, a, b)
		ends[i] = [2]*Conn{a, b}
	}
	v := d.b.vectors[0]
	require.Eventually(t, v.tryEnter, 30*time.Second, time.Microsecond) // nobody takes anything
	for range writes {
		for _, e := range ends {
			_, err := e[0].Write([]byte{1})
			require.NoError(t, err)
		}
	}
	v.leave()
	for _, e := range ends {
		_, err := io.ReadFull(e[1], make([]byte, writes))
		require.NoError(t, err)
	}
	require.Eventually(t, func() bool { return d.b.Stats().SharedGrown > 0 }, 30*time.Second, time.Millisecond)
	for _, e := range ends {
		require.NoError(t, e[0].Close())
		require.NoError(t, e[1].Close())
	}
}

// Without shared receives everything works as well.
func TestNoSharedQueue(t *testing.T) {
	for name, open := range duos {
		t.Run(name, func(t *testing.T) {
			d := open(t, StackConfig{NoSRQ: true})
			a, b := d.pair(ConnConfig{})
			soon(t, a, b)
			go echo(b)
			require.NoError(t, converse(a, 3, 50))
			require.NoError(t, a.Close())
			waitFor(t, "no end", b.done)
		})
	}
}

// What is left for the holder of the token is always done, whoever holds it and however he leaves.
func TestVectorLeavesNothing(t *testing.T) {
	d := shmDuo(t, 1, StackConfig{})
	v := d.a.vectors[0]
	m := &counter{}
	m.node.member = m
	var all, others sync.WaitGroup
	var over atomic.Bool
	const rounds = 300
	for range 3 {
		all.Go(func() {
			for range rounds {
				before := m.served.Load()
				v.wants(&m.node)
				v.kick()
				for m.served.Load() == before && !over.Load() {
					time.Sleep(time.Microsecond)
				}
			}
		})
	}
	jobs := 0
	all.Go(func() {
		for range rounds {
			_ = v.do(func() { jobs++ })
		}
	})
	others.Go(func() {
		for !over.Load() {
			v.spin(never{})
		}
	})
	others.Go(func() {
		for !over.Load() {
			if v.tryEnter() {
				v.handOver()
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
	node   node
	served atomic.Int64
}

func (*counter) complete(*verbs.WC) {}
func (c *counter) service()         { c.served.Add(1) }

type never struct{}

func (never) ready() bool { return false }

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

// An operation that lasts beyond the end of its connection keeps the memory it uses.
func TestConnMemoryOutlivesClose(t *testing.T) {
	each(t, func(t *testing.T, d *duo) {
		a, b := d.pair(ConnConfig{Linger: 10 * time.Millisecond})
		soon(t, a, b)
		_, err := b.Write(pattern[:5000])
		require.NoError(t, err)
		inside, leave := make(chan struct{}, 1), make(chan struct{})
		var seen []byte
		result := make(chan error, 2)
		go func() {
			_, err := a.WriteTo(writerFunc(func(p []byte) (int, error) {
				inside <- struct{}{}
				<-leave
				seen = append(seen, p...)
				return len(p), nil
			}))
			result <- err
		}()
		<-inside
		go func() {
			_, err := a.ReadFrom(readerFunc(func(p []byte) (int, error) {
				inside <- struct{}{}
				<-leave
				return copy(p, "too late"), nil
			}))
			result <- err
		}()
		<-inside
		require.NoError(t, a.Close())
		require.NoError(t, b.Close())
		waitFor(t, "no end", a.done)
		require.NotZero(t, d.a.Stats().Pool.Used)
		close(leave)
		for range 2 {
			require.Error(t, <-result)
		}
		require.Equal(t, pattern[:len(seen)], seen)
		waitFor(t, "no end", b.done)
		require.Eventually(t, func() bool { return d.a.Stats().Pool.Used == 0 }, 30*time.Second, time.Millisecond)
	})
}

type writerFunc func(p []byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

type readerFunc func(p []byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

// Writers and readers that fail, or claim what cannot be, end the copying and nothing else.
func TestConnCopyErrors(t *testing.T) {
	each(t, func(t *testing.T, d *duo) {
		a, b := d.pair(ConnConfig{})
		soon(t, a, b)
		broken := errors.New("broken")
		n, err := a.ReadFrom(io.MultiReader(readerFunc(func(p []byte) (int, error) { return copy(p, "some"), broken })))
		require.ErrorIs(t, err, broken)
		require.Equal(t, int64(4), n)
		_, err = a.ReadFrom(readerFunc(func(p []byte) (int, error) { return len(p) + 1, nil }))
		require.Error(t, err)
		n, err = b.WriteTo(writerFunc(func(p []byte) (int, error) { return 1, broken }))
		require.ErrorIs(t, err, broken)
		require.Equal(t, int64(1), n)
		n, err = b.WriteTo(writerFunc(func(p []byte) (int, error) { return 1, nil }))
		require.ErrorIs(t, err, io.ErrShortWrite)
		require.Equal(t, int64(1), n)
		buf := make([]byte, 2)
		_, err = io.ReadFull(b, buf)
		require.NoError(t, err)
		require.Equal(t, "me", string(buf))
		require.NoError(t, a.Close())
		require.NoError(t, b.Close())
	})
}

// A member that wants more service while it is served gets a whole turn first, even on a vector that is attended.
func TestVectorServesAgain(t *testing.T) {
	d := shmDuo(t, 1, StackConfig{})
	v := d.a.vectors[0]
	m := &again{v: v}
	m.node.member = m
	require.NoError(t, v.do(func() { v.add(0xffffff, m) }))
	require.Eventually(t, v.tryEnter, 30*time.Second, time.Microsecond)
	v.attended = true
	v.stay()
	v.wants(&m.node)
	v.kick()
	require.Eventually(t, func() bool { return m.seen.Load() }, 30*time.Second, time.Millisecond)
	require.NoError(t, v.do(func() { v.remove(0xffffff) }))
}

// again wants service until the completion queue has been polled.
type again struct {
	v    *vector
	node node
	seen atomic.Bool
}

func (*again) complete(*verbs.WC) {}

func (a *again) service() {
	if !a.v.drained {
		a.v.wants(&a.node)
		return
	}
	a.seen.Store(true)
}

// Who stays and does not come back is replaced by the vector's goroutine, whenever it was woken before.
func TestVectorStayIsGuarded(t *testing.T) {
	d := shmDuo(t, 1, StackConfig{})
	v := d.a.vectors[0]
	m := &again{v: v}
	require.NoError(t, v.do(func() { v.add(0xffffff, m) }))
	for _, wakeAt := range []time.Duration{-time.Millisecond, 0, guardTime / 2, time.Hour} {
		require.Eventually(t, v.tryEnter, 30*time.Second, time.Microsecond)
		if v.wakeAt = time.Now().Add(wakeAt); wakeAt > 0 {
			v.setTimer(wakeAt)
		}
		v.stay()
		require.Eventually(t, func() bool {
			if !v.tryEnter() {
				return false
			}
			defer v.leave()
			return !v.attended
		}, 30*time.Second, time.Millisecond)
	}
	require.NoError(t, v.do(func() { v.remove(0xffffff) }))
}
