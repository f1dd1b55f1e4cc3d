package process

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// What the kernel holds keeps its caller no longer than the caller wants, and there is one of it.
func TestLane(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l Lane
		errFile, server, begun := errors.New("stale file handle"), make(chan struct{}), 0
		look := func() (int, error) {
			begun++
			<-server
			return begun, errFile
		}
		for range 3 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			_, err := Through(ctx, &l, look)
			require.ErrorIs(t, err, context.DeadlineExceeded)
			cancel()
		}
		require.Equal(t, 1, begun)
		close(server)
		n, err := Through(t.Context(), &l, look)
		require.ErrorIs(t, err, errFile)
		require.Equal(t, 2, n)
	})
}
