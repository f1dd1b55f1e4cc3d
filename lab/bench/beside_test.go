package bench

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// The stream begins before the work beside it counts, and ends after it.
func TestStreamCoversTheWork(t *testing.T) {
	for _, o := range []overlap{besideSockperf, besideOwn} {
		for _, d := range []time.Duration{warmUp, time.Second, 1500 * time.Millisecond, 3 * time.Second} {
			stream, err := time.ParseDuration(o.streamTime(d) + "s")
			require.NoError(t, err)
			require.LessOrEqual(t, o.stream+200*time.Millisecond, o.work+o.lead)
			require.GreaterOrEqual(t, o.stream+stream, o.work+o.lead+max(d, time.Second)+besideSlack)
			require.Less(t, o.stream+stream, o.work+o.lead+max(d, time.Second)+besideSlack+time.Second)
		}
	}
	require.Equal(t, "3", besideSockperf.streamTime(time.Second))
	require.Equal(t, "2", besideOwn.streamTime(time.Second))
}
