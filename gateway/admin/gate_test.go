package admin

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// TestGate: a client that is not privileged waits behind its like, for so long as the gate
// lets it, and never takes the last place.
func TestGate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGate(3, 2, time.Second)
		enter := func(privileged bool) func() {
			leave, ok := g.Enter(t.Context(), privileged)
			require.True(t, ok)
			return leave
		}
		refused := func(privileged bool) {
			began := time.Now()
			_, ok := g.Enter(t.Context(), privileged)
			require.False(t, ok)
			require.Equal(t, time.Second, time.Since(began))
		}
		first, second := enter(false), enter(false)
		refused(false)
		root := enter(true)
		refused(true)
		first()
		first = enter(false)
		first()
		second()
		root()
		for range 3 {
			defer enter(true)()
		}
	})
}

// TestGateOfOneThatGoes: a client that goes while it waits takes nothing with it.
func TestGateOfOneThatGoes(t *testing.T) {
	g := newGate(1, 1, time.Hour)
	leave, ok := g.Enter(t.Context(), true)
	require.True(t, ok)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, ok = g.Enter(ctx, false)
	require.False(t, ok)
	leave()
	for range 100 { // what is free is not waited for
		leave, ok = g.Enter(ctx, false)
		require.True(t, ok)
		leave()
	}
}
