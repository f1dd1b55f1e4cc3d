package wire

import (
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

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
