package datagram

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/report"
)

// TestShardRestsWithoutSlots: while all slots are under way there is nothing to read for, and the loop may sleep until
// a completion.
func TestShardRestsWithoutSlots(t *testing.T) {
	h := newHosts(t, report.DeviceSoft)
	h.meet()
	e, ends := h.engine(0), h.ends(0, 4000, 53)
	e.s.Call(func() {
		slots := e.out.free
		e.out.free = nil
		h.d[0].steer(t, ends, []byte("waits"))
		e.readable = true
		worked, _ := e.Progress(e.now)
		assert.False(t, worked)
		assert.True(t, e.Arm())
		e.out.free = slots
		assert.False(t, e.Arm(), "it can be read")
		worked, _ = e.Progress(e.now)
		assert.True(t, worked)
		worked, _ = e.Progress(e.now)
		assert.False(t, worked)
		assert.True(t, e.Arm())
	})
	require.Equal(t, "waits", string(h.d[1].receive(t).payload))
}
