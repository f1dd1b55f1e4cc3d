package soft

import (
	"math"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// What a third host has to guess is guessed no better than by chance: every bit
// is as often set as not, whatever it was the last time and whatever the others
// are, and numbers of so many bits repeat as seldom as they should.
func TestNumbersCannotBeGuessed(t *testing.T) {
	t.Run("queue pair", func(t *testing.T) {
		requireRandom(t, 24, 0, 30000, func() uint32 { // each of a device of its own
			var s slotTable
			s.init(1, 10)
			n, ok := s.take(0)
			require.True(t, ok)
			return n
		})
	})
	t.Run("queue pair of a device", func(t *testing.T) {
		var s slotTable
		s.init(1, 1<<20)
		requireRandom(t, 20, 1<<20, 30000, func() uint32 {
			n, ok := s.take(0)
			require.True(t, ok)
			return n >> vectorBits
		})
	})
	t.Run("key", func(t *testing.T) {
		var k keyTable
		requireRandom(t, 32, 0, 30000, func() uint32 {
			m := &mr{}
			require.True(t, k.add(m))
			defer k.remove(m)
			require.Same(t, m, k.find(m.key))
			require.Nil(t, k.find(m.key^1))
			return m.key
		})
	})
	t.Run("first PSN", func(t *testing.T) { requireRandom(t, 24, 0, 30000, RandomPSN) })
	t.Run("partition", func(t *testing.T) {
		requireRandom(t, 15, 0, 10000, func() uint32 {
			k := RandomPartition()
			require.True(t, ValidPartition(k))
			return uint32(k &^ wholeMember)
		})
	})
	t.Run("source port", func(t *testing.T) {
		requireRandom(t, 14, 0, 4000, func() uint32 {
			l, _, err := openLane(netip.MustParseAddr("127.0.71.9"), 0)
			require.NoError(t, err)
			require.NoError(t, unix.Close(l.fd))
			return uint32(l.port) - firstSourcePort
		})
	})
}

// requireRandom draws n numbers. apart: they are that many at most, and none is
// drawn twice.
func requireRandom(t *testing.T, bits, apart, n int, draw func() uint32) {
	t.Helper()
	ones, flips := make([]int, bits), make([]int, bits)
	pairs := make([][]int, bits)
	for i := range pairs {
		pairs[i] = make([]int, bits)
	}
	seen := map[uint32]int{}
	twice, last := 0, uint32(0)
	for range n {
		x := draw()
		require.Zero(t, uint64(x)>>bits)
		twice += seen[x]
		seen[x]++
		for i := range bits {
			ones[i] += int(x >> i & 1)
			flips[i] += int((x ^ last) >> i & 1)
			for j := range i {
				pairs[i][j] += int((x>>i ^ x>>j) & 1)
			}
		}
		last = x
	}
	within := 6 * math.Sqrt(float64(n)) / 2 // six standard deviations
	for i := range bits {
		require.InDelta(t, n/2, ones[i], within, "bit %d", i)
		require.InDelta(t, n/2, flips[i], within, "bit %d from one to the next", i)
		for j := range i {
			require.InDelta(t, n/2, pairs[i][j], within, "bits %d and %d", i, j)
		}
	}
	want := float64(n) * float64(n-1) / 2 / math.Exp2(float64(bits))
	if apart > 0 {
		want = 0
	}
	require.InDelta(t, want, twice, 6*math.Sqrt(want+1), "pairs of the same number")
}

// A number names its vector, is no other queue pair's, and none of the special
// ones. The number of a closed queue pair rests for a while.
func TestSlotTable(t *testing.T) {
	for vectors := 1; vectors <= maxVectors; vectors++ {
		var s slotTable
		s.init(vectors, 3*restingQPNs)
		now := map[uint32]bool{}
		for i := range 3 * restingQPNs {
			n, ok := s.take(i % vectors)
			require.True(t, ok)
			require.Equal(t, i%vectors, vectorOf(n, vectors))
			require.False(t, now[n] || n < 1<<vectorBits || n >= multicastQPN)
			now[n] = true
		}
		_, ok := s.take(0)
		require.False(t, ok, "the limit")
		var old uint32
		for n := range now {
			s.put(n)
			old = n
		}
		require.Zero(t, s.used)
		require.Len(t, s.resting, restingQPNs)
		require.Len(t, s.taken, restingQPNs)
		require.Contains(t, s.taken, old)
	}
}

// Looking for a free number ends: a vector has half of its numbers at most.
func TestSlotTableFull(t *testing.T) {
	var s slotTable
	s.init(1, 1<<20)
	for range vectorQPs {
		_, ok := s.take(0)
		require.True(t, ok)
	}
	_, ok := s.take(0)
	require.False(t, ok)
}
