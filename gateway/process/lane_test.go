package process

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// What the kernel holds keeps its caller no longer than the caller wants, and there is one of it.
func TestLane(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l Lane
		errFile, server := errors.New("stale file handle"), make(chan struct{})
		var begun atomic.Int32
		look := func() (int32, error) {
			n := begun.Add(1)
			<-server
			return n, errFile
		}
		for range 3 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			_, err := Through(ctx, &l, look)
			require.ErrorIs(t, err, context.DeadlineExceeded)
			cancel()
		}
		require.EqualValues(t, 1, begun.Load())
		close(server)
		n, err := Through(t.Context(), &l, look)
		require.ErrorIs(t, err, errFile)
		require.EqualValues(t, 2, n)
	})
}
