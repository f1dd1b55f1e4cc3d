package shm

import (
	"reflect"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/lab/leak"
)

// An idle connection has these.
func TestIdleSizes(t *testing.T) {
	leak.SizeAtMost[qp](t, 512)
	leak.SizeAtMost[sendSlot](t, 128)
}

// The words of a block are where both sides compute them to be.
func TestBlockWords(t *testing.T) {
	words := reflect.TypeFor[blockWords]()
	require.EqualValues(t, blkRing, words.Size())
	for name, at := range map[string]uintptr{
		"prod": blkProd, "cons": blkCons, "posted": blkPosted, "status": blkStatus,
		"want": blkWant, "claim": blkClaim, "news": blkNews,
	} {
		f, ok := words.FieldByName(name)
		require.True(t, ok, name)
		require.Equal(t, at, f.Offset, name)
	}
}
