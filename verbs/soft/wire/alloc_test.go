package wire

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestHotPathsDoNotAllocate(t *testing.T) {
	none := func(what string, f func()) {
		t.Helper()
		require.Zero(t, testing.AllocsPerRun(100, f), what)
	}
	buf := make([]byte, 0, MaxLen)
	payload := make([]byte, 1021)
	zeros := make([]byte, 3)
	long := make([]byte, 4096)
	none("UpdateAppend", func() { _, sink = UpdateAppend(buf[:0], sink, long) })
	for _, o := range known() {
		h := full(o)
		none("Append "+o.String(), func() { buf = h.Append(buf[:0], len(payload)) })
		d := packet(h, payload)
		var got Header
		none("Parse "+o.String(), func() { _, _ = got.Parse(d) })
		none("Parse truncated "+o.String(), func() { _, _ = got.Parse(d[:h.Len()]) })
	}
	var memo Memo
	for _, flow := range []Flow{flow4, flow6} {
		c := NewICRC(flow)
		h := Header{Opcode: RCWriteOnlyImm}
		none("send", func() {
			b := h.Append(buf[:0], len(payload))
			state := c.Begin(7, len(b)+len(payload)+len(zeros)+ICRCLen, b)
			state = Update(Update(state, payload), zeros)
			b = append(append(b, payload...), zeros...)
			buf = AppendICRC(b, state)
		})
		none("Verify", func() {
			if _, ok := c.Verify(buf); !ok {
				t.Error("not verified")
			}
		})
		none("VerifyWith", func() {
			if _, ok := c.VerifyWith(&memo, buf); !ok {
				t.Error("not verified")
			}
		})
		none("NewICRC", func() { c = NewICRC(flow) })
	}
}
