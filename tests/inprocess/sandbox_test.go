package inprocess

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/inprocess"
	"github.com/smcgw/smcgw/inprocess/broker"
)

// TestSandbox checks that the connections of a program go on by the kernel after it installs a seccomp filter that
// kills it for any call that it does not make itself.
func TestSandbox(t *testing.T) {
	program := shared.For(t).Program("sandbox")
	for _, how := range []string{"prctl", "seccomp"} {
		t.Run(how, func(t *testing.T) {
			want, err := run(nil, time.Minute, nil, program, how)
			require.NoError(t, err, want)
			require.Equal(t, "ok\n", want)
			w := newWorld(t, broker.Thresholds{})
			got, err := run(w, time.Minute, nil, program, how)
			require.NoError(t, err, got)
			require.Equal(t, want, got)
			require.Eventually(t, func() bool { // the broker learns of it by a message
				return w.Counters().Returned[inprocess.WhySandbox] > 0
			}, 30*time.Second, time.Millisecond)
			require.Equal(t, uint64(1), w.Counters().Promoted)
		})
	}
}
