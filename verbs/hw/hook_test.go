package hw

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/verbs"
	"github.com/smcgw/smcgw/verbs/hw/hwtest"
	"github.com/smcgw/smcgw/verbs/hw/ibv"
)

// hooks are what a test does within calls of the library; nil: nothing. An error of a hook
// is that of the call, which then does nothing.
type hooks struct {
	*hwtest.Library

	notified func() // behind Notify
}

type hookedContext struct {
	ibv.Context
	h *hooks
}

func (h *hooks) Open(name string) (ibv.Context, error) {
	ctx, err := h.Library.Open(name)
	return &hookedContext{ctx, h}, err
}

func (c *hookedContext) Notify(cqs []ibv.CQ, solicited bool) error {
	err := c.Context.Notify(cqs, solicited)
	if c.h.notified != nil {
		c.h.notified()
	}
	return err
}

// newHookedEnds is newEnds where the calls of the first adapter have hooks.
func newHookedEnds(t testing.TB, h *hooks, change ...func(*hwtest.Library)) *ends {
	h.Library = newLibrary(t, 2, change...)
	e := &ends{t: t, lib: h.Library}
	e.a = newEnd(t, h.Library, "fake0", func(c *Config) { c.Library = h })
	e.b = newEnd(t, h.Library, "fake1")
	return e
}

// A queue that is made while the loop arms its queues is armed the next time.
func TestQueueMadeWhileOthersAreArmed(t *testing.T) {
	var h hooks
	e := newHookedEnds(t, &h)
	var late verbs.CQ
	h.notified = func() {
		h.notified = nil
		var err error
		late, err = e.a.dev.CreateCQ(verbs.CQAttr{Depth: 100})
		require.NoError(t, err)
	}
	require.True(t, e.a.drv.Arm())
	require.False(t, late.(*cq).armed)
	require.Equal(t, 1, e.lib.Calls("fake0", "Notify"))
	require.True(t, e.a.drv.Arm())
	require.True(t, late.(*cq).armed)
	require.Equal(t, 2, e.lib.Calls("fake0", "Notify"))
	require.NoError(t, late.Close())
}
