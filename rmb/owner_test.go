package rmb

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// The arenas of one owner have one quota, whatever other arenas there are.
func TestOwnerQuota(t *testing.T) {
	dev := &device{}
	p := newPool(t, 4<<20, 2<<20)
	a1, a2, b, c := p.ArenaOf("a", dev), p.ArenaOf("a", dev), p.ArenaOf("b", dev), p.Arena(dev)
	take := func(a *Arena) *Region {
		t.Helper()
		r, err := a.Alloc(1 << 20)
		require.NoError(t, err)
		return r
	}
	first := take(a1)
	take(a2)
	for _, a := range []*Arena{a1, a2} {
		_, err := a.Alloc(1)
		require.ErrorIs(t, err, ErrNoMemory)
	}
	require.Equal(t, uint64(2), p.Stats().RefusedQuota)
	take(b)
	last := take(c)
	all := p.Owners()
	require.Equal(t, ArenaStats{Reserved: 2 << 20, Used: 2 << 20, Regions: 2}, all["a"])
	require.Equal(t, ArenaStats{Reserved: 1 << 20, Used: 1 << 20, Regions: 1}, all["b"])
	require.Len(t, all, 3)

	// What lies empty in one arena of the owner makes room in another.
	require.NoError(t, first.Free())
	take(a2)
	require.Equal(t, int64(2<<20), p.Owners()["a"].Reserved)

	// An owner is known for as long as it has an arena.
	require.NoError(t, a1.Close())
	require.NoError(t, a1.Close())
	require.Contains(t, p.Owners(), any("a"))
	require.NoError(t, last.Free())
	require.NoError(t, c.Close())
	require.Len(t, p.Owners(), 2)
}
