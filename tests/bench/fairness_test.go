package bench

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A soft stream and one of the kernel's TCP leave each other a fair part of a
// bottleneck, whichever was there first. The bounds are generous: two streams
// of TCP are not always closer. BenchmarkSoftFairness has the numbers.
func TestSoftBesideTCP(t *testing.T) {
	l := overSwitch(t, 1500)
	at := lines[0]
	l.bottleneck(at.mbit, at.queue)
	for _, r := range []rivals{
		{tcpStream("cubic", 7), softStream(6), time.Second},
		{softStream(7), tcpStream("cubic", 6), time.Second},
	} {
		line := float64(at.mbit) * 1e6
		var x, y float64
		// A machine that is busy otherwise does not fill the line; then the streams
		// share something else.
		fair := func() bool { return x+y > line/4 && min(x, y) > (x+y)/5 }
		for try := 0; try < 3 && !fair(); try++ {
			x, y, _ = l.share(r)
			t.Logf("%s %.0f Mbit/s, then %s %.0f Mbit/s: fairness %.3f", r.first.Kind, x/1e6, r.second.Kind, y/1e6, jain(x, y))
		}
		require.True(t, fair(), "%s %.0f Mbit/s, then %s %.0f Mbit/s", r.first.Kind, x/1e6, r.second.Kind, y/1e6)
	}
}
