package conn

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	life "github.com/smcgw/smcgw/gateway/internal/flow"
	"github.com/smcgw/smcgw/negotiate"
)

// exchange has the receive ring of one side exchanged as the plan would have it,
// but at any time and for any size. It tells whether that could begin.
func exchange(c *carry, n int) (began bool) {
	c.Shard.Call(func() { began = c.Exchange(n) })
	return began
}

// patterned fills b with what a direction has from the offset on.
func patterned(b []byte, side, offset int) {
	for i := range b {
		at := offset + i
		b[i] = byte(at) ^ byte(at>>8) ^ byte(at>>16) ^ byte(side*0x5a)
	}
}

// send writes n bytes of a side's direction and ends it, or cuts the connection
// off instead.
func (c *pairConn) send(side, n int, cut bool) error {
	b := make([]byte, 48<<10)
	for at := 0; at < n; {
		k := min(len(b), n-at)
		patterned(b[:k], side, at)
		if _, err := c.app[side].Write(b[:k]); err != nil {
			return err
		}
		at += k
	}
	if cut {
		_ = c.app[side].SetLinger(0)
		return c.app[side].Close()
	}
	return c.app[side].CloseWrite()
}

// receive reads the other side's direction to its end and returns its length,
// -1 if a byte is wrong.
func (c *pairConn) receive(side int) (n int, err error) {
	b, want := make([]byte, 40<<10), make([]byte, 40<<10)
	for {
		k, err := c.app[side].Read(b)
		patterned(want[:k], 1-side, n)
		if string(b[:k]) != string(want[:k]) {
			return -1, nil
		}
		if n += k; errors.Is(err, io.EOF) {
			return n, nil
		} else if err != nil {
			return n, err
		}
	}
}

// TestRingsAreExchangedWhileFlowsEnd: whatever a flow is doing while its rings are
// exchanged, half-closed, ended or cut off, no byte is lost or wrong and all of
// its memory comes back.
func TestRingsAreExchangedWhileFlowsEnd(t *testing.T) {
	p := newPair(t)
	const rounds, most = 12, 3 << 20
	exchanges := 0
	for round := range rounds {
		rng := rand.New(rand.NewPCG(uint64(round), 1))
		c := p.dial(t, negotiate.CarrierSHM)
		carries := [2]*carry{c.flow[0].chosen(), c.flow[1].chosen()}
		cut := round%3 == 2
		sizes := [2]int{rng.IntN(most), rng.IntN(most)}
		var got [2]int
		var sent, received [2]error
		var wg sync.WaitGroup
		for side := range 2 {
			wg.Go(func() { sent[side] = c.send(side, sizes[side], cut && side == 1) })
			wg.Go(func() { got[side], received[side] = c.receive(side) })
		}
		over := make(chan struct{})
		go func() { wg.Wait(); close(over) }()
		for busy := true; busy; {
			select {
			case <-over:
				busy = false
			default:
				if exchange(carries[rng.IntN(2)], 2+rng.IntN(1<<(2+rng.IntN(19)))) {
					exchanges++
				}
				if rng.IntN(4) == 0 {
					time.Sleep(time.Duration(rng.IntN(300)) * time.Microsecond)
				}
			}
		}
		for side := range 2 {
			require.GreaterOrEqual(t, got[side], 0, "round %d: wrong bytes at side %d", round, side)
			if !cut {
				require.NoError(t, sent[side], "round %d", round)
				require.NoError(t, received[side], "round %d", round)
				require.Equal(t, sizes[1-side], got[side], "round %d: bytes at side %d", round, side)
			}
		}
		c.closeApps()
		states := c.over(t)
		if !cut {
			require.Equal(t, [2]life.Phase{life.Closed, life.Closed}, states)
		}
	}
	p.empty(t)
	require.NotZero(t, exchanges)
	t.Logf("%d exchanges", exchanges)
}

// TestRingFollowsTheFlow: the reader's ring becomes larger under a bulk flow, and as small as it was
// when the flow wants little; no byte is wrong on the way.
func TestRingFollowsTheFlow(t *testing.T) {
	p := newPair(t)
	c := p.dial(t, negotiate.CarrierSHM)
	reader := c.flow[1].chosen()
	size := func() (n int) {
		reader.Shard.Call(func() { n = reader.EP.RingSize() })
		return n
	}
	first, sent := size(), 0
	pass := func(n int) {
		b, got := make([]byte, n), make([]byte, n)
		patterned(b, 0, sent)
		written := make(chan error, 1)
		go func() {
			_, err := c.app[0].Write(b)
			written <- err
		}()
		_, err := io.ReadFull(c.app[1], got)
		require.NoError(t, err)
		require.NoError(t, <-written)
		require.True(t, bytes.Equal(b, got), "after %d bytes", sent)
		sent += n
	}
	began := time.Now()
	for size() == first {
		require.Less(t, time.Since(began), patience, "it grows")
		pass(8 << 20)
	}
	for began = time.Now(); size() > first; {
		require.Less(t, time.Since(began), patience, "it shrinks")
		pass(4 << 10)
	}
	c.closeApps()
	require.Equal(t, [2]life.Phase{life.Closed, life.Closed}, c.over(t))
	p.empty(t)
}
