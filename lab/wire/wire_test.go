package wire

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A wire delivers in the order of the times at which packets are due, and drops what its filter drops.
func TestWireDelivers(t *testing.T) {
	w := New(1500, 1)
	defer w.Close()
	got := make(chan byte, 10)
	w.B().Handle(func(p []byte) { got <- p[0] })
	w.A().Impair(Impairment{Delay: 20 * time.Millisecond})
	w.A().Send([]byte{2})
	w.A().Impair(Impairment{Filter: func(p []byte) []byte {
		if p[0] == 9 {
			return nil
		}
		return p
	}})
	w.A().Send([]byte{9})
	w.A().Send([]byte{1})
	require.Equal(t, byte(1), <-got)
	require.Equal(t, byte(2), <-got)
}

// The faults of a wire follow from its seed.
func TestWireFaultsRepeat(t *testing.T) {
	run := func(seed uint64) (got []byte) {
		w := New(1500, seed)
		w.B().Handle(func(p []byte) { got = append(got, p[0]) })
		w.A().Impair(Impairment{Loss: 0.3, Dup: 0.3})
		for i := range byte(100) {
			w.A().Send([]byte{i})
		}
		w.Close() // what is due is delivered
		return got
	}
	first := run(7)
	require.Equal(t, first, run(7))
	require.NotEqual(t, first, run(8))
}

// A pump that is full takes no more, nor does one that is closed.
func TestPumpIsBounded(t *testing.T) {
	p := newPump(func([]byte) {})
	for range pumpLimit {
		require.True(t, p.push([]byte{1}, time.Hour))
	}
	require.False(t, p.push([]byte{1}, time.Hour))
	p.close()
	p.close()
	require.False(t, p.push([]byte{1}, 0))
}
