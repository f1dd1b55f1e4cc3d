package shm

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/verbs"
)

// TestAttachWhileLoopSleeps: a loop that sleeps while a peer attaches turns for that peer.
func TestAttachWhileLoopSleeps(t *testing.T) {
	dir := t.TempDir()
	a, b := openDevice(t, dir), openDevice(t, dir)
	_, err := b.Listen()
	require.NoError(t, err)
	la, err := verbs.NewLoop(a, 0, nil)
	require.NoError(t, err)
	defer la.Close()
	lb, err := verbs.NewLoop(b, 0, nil)
	require.NoError(t, err)
	defer lb.Close()
	time.Sleep(50 * time.Millisecond) // both sleep
	pb, err := b.Offer()
	require.NoError(t, err)
	pa, err := a.Attach(context.Background(), pb.Name(), pb.Key())
	require.NoError(t, err)
	seen := make(chan struct{})
	pa.AfterGrace(func() { close(seen) })
	select {
	case <-seen:
	case <-time.After(10 * time.Second):
		require.Fail(t, "the loop sleeps")
	}
}
