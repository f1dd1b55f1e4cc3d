package segment

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestPAWS(t *testing.T) {
	const acked = 5000
	recent := uint32(math.MaxUint32 - 10) // timestamps go round
	for name, c := range map[string]struct {
		seq, end, stamp uint32
		after           time.Duration
		takes           bool
		counts          uint32 // the timestamp that others are compared with then
	}{
		"newer":                      {acked, acked + 10, recent + 20, 0, true, recent + 20},
		"equal, as a retransmission": {acked, acked + 10, recent, time.Second, true, recent},
		"older":                      {acked, acked + 10, recent - 1, time.Second, false, recent},
		"older by half":              {acked, acked + 10, recent - math.MaxInt32, time.Second, false, recent},
		"bare":                       {acked, acked, recent + 1, 0, true, recent + 1},
		"after a gap":                {acked + 1, acked + 10, recent + 5, 0, true, recent},
		"after a gap, older":         {acked + 1, acked + 10, recent - 5, 0, false, recent},
		"came before":                {acked - 10, acked - 1, recent + 5, 0, true, recent},
		"half of all before":         {acked + 1<<31, acked + 1<<31, recent + 5, 0, true, recent},
		"in part":                    {acked - 10, acked + 1, recent + 5, 0, true, recent + 5},
		"older after 23 days":        {acked, acked + 10, recent - 5, 23 * 24 * time.Hour, false, recent},
		"older after 24 days":        {acked, acked + 10, recent - 5, outdated, true, recent - 5},
	} {
		t.Run(name, func(t *testing.T) {
			var g PAWS
			g.Begin(Recent{Value: recent, At: time.Hour})
			s := Stamped{Seq: c.seq, End: c.end, Acked: acked, Stamp: c.stamp, Now: time.Hour + c.after}
			require.Equal(t, c.takes, g.Takes(s))
			require.Equal(t, c.counts, g.recent.Value)
		})
	}
	var none PAWS
	require.True(t, none.Takes(Stamped{Stamp: 7}), "a connection without timestamps")
}

// Another host has the peer's place when enough of its answers came over the time and none of the peer did.
func TestStrangeACKs(t *testing.T) {
	const every = 2 * time.Second
	var a StrangeACKs
	gone, ask := a.Strange(time.Second, every)
	require.False(t, gone)
	require.True(t, ask, "the first asks")
	for range 10 {
		gone, ask = a.Strange(time.Second, every)
		require.False(t, gone, "too soon")
		require.False(t, ask, "asked just now")
	}
	_, ask = a.Strange(time.Second+every, every)
	require.True(t, ask)
	a.Heard()
	require.Zero(t, a.Count())
	gone, ask = a.Strange(time.Second+every, every)
	require.False(t, gone)
	require.False(t, ask, "it was there just now")
	require.Zero(t, a.Count())

	begun := time.Minute
	for i := range strangeMost - 1 {
		gone, _ = a.Strange(begun+time.Duration(i), every)
		require.False(t, gone, "too few")
	}
	gone, _ = a.Strange(begun+StrangeTime-1, every)
	require.False(t, gone, "too soon")
	gone, _ = a.Strange(begun+StrangeTime, every)
	require.True(t, gone)
}

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
