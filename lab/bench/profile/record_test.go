package profile

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/lab/testnet"
)

// needPerf skips where only the benchmarks' programs are missing, or the kernel
// lets no program look.
func needPerf(t *testing.T) {
	testnet.Require(t, "root")
	if out, err := exec.Command(Program, "record", "-q", "-a", "-e", "cpu-clock", "-o", "/dev/null", "--", "true").CombinedOutput(); err != nil {
		t.Skipf("SKIPPED: perf cannot look at this machine: %v: %s", err, out)
	}
}

// A look at this machine can be read, and leaves nothing behind; also one that
// ends before its time.
func TestRecord(t *testing.T) {
	needPerf(t)
	dir := t.TempDir()
	over := make(chan struct{})
	close(over)
	for _, done := range []chan struct{}{nil, over} {
		text, err := Record(t.Context(), dir, 300*time.Millisecond, done)
		if err != nil {
			require.NotNil(t, done, "%v", err)
			continue // it had not begun
		}
		n := 0
		for s, err := range Parse(text) {
			require.NoError(t, err)
			require.NotEmpty(t, s.Command)
			n++
		}
		if done == nil {
			require.Positive(t, n)
		}
		left, err := os.ReadDir(dir)
		require.NoError(t, err)
		require.Empty(t, left)
	}
}

func TestRecordIsCancelled(t *testing.T) {
	needPerf(t)
	why := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(why)
	_, err := Record(ctx, t.TempDir(), time.Minute, nil)
	require.Error(t, err)
}
