package shm

import (
	"reflect"
	"testing"

	"github.com/stretchr/testify/require"
)

// An idle connection has these, so what is rare in them is an object that its first use makes. The bounds are classes that
// the allocator rounds up to; what is larger than 512 bytes would take a word more.
func TestIdleSizes(t *testing.T) {
	for _, s := range []struct {
		of    any
		class uintptr
	}{
		{qp{}, 512},
		{sendSlot{}, 128},
	} {
		require.LessOrEqual(t, reflect.TypeOf(s.of).Size(), s.class, "%T", s.of)
	}
}

// The words of a block are where both sides compute them to be.
func TestBlockWords(t *testing.T) {
	words := reflect.TypeFor[blockWords]()
	require.EqualValues(t, blkRing, words.Size())
	for name, at := range map[string]uintptr{
		"prod": blkProd, "cons": blkCons, "posted": blkPosted, "status": blkStatus, "starve": blkStarve,
		"want": blkWant, "claim": blkClaim, "news": blkNews,
	} {
		f, ok := words.FieldByName(name)
		require.True(t, ok, name)
		require.Equal(t, at, f.Offset, name)
	}
}
