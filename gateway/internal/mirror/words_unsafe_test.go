package mirror

import (
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/inprocess"
)

// TestWords: they are where the layout has them.
func TestWords(t *testing.T) {
	var w words
	require.Equal(t, map[string]uintptr{
		"head": inprocess.EndHead, "base": inprocess.EndBase, "ksent": inprocess.EndKsent, "order": inprocess.EndOrder, "nx": inprocess.EndNx,
		"want": inprocess.EndWant, "tail": inprocess.EndTail, "arm": inprocess.EndArm, "room": inprocess.EndRoom, "flags": inprocess.EndFlags,
		"first": inprocess.EndTransitions, "k": inprocess.EndTransitions + 8, "nonce": inprocess.EndNonces,
	}, map[string]uintptr{
		"head": unsafe.Offsetof(w.head), "base": unsafe.Offsetof(w.base), "ksent": unsafe.Offsetof(w.ksent), "order": unsafe.Offsetof(w.order),
		"nx": unsafe.Offsetof(w.nx), "want": unsafe.Offsetof(w.want), "tail": unsafe.Offsetof(w.tail), "arm": unsafe.Offsetof(w.arm),
		"room": unsafe.Offsetof(w.room), "flags": unsafe.Offsetof(w.flags), "first": unsafe.Offsetof(w.first),
		"k": unsafe.Offsetof(w.first) + unsafe.Offsetof(w.first.k), "nonce": unsafe.Offsetof(w.nonce),
	})
	require.LessOrEqual(t, unsafe.Sizeof(w), uintptr(inprocess.RingAt))
}
