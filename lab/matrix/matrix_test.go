package matrix

import (
	"os"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/lab/leak"
)

func TestMain(m *testing.M) { os.Exit(leak.Main(m)) }

func TestASeedRepeatsItsCells(t *testing.T) {
	cells := []int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}
	first := draw(of(7, "a"), cells, 4)
	require.Len(t, first, 4)
	require.True(t, slices.IsSorted(first), "in their order")
	require.Len(t, slices.Compact(slices.Clone(first)), 4, "each once")
	require.Equal(t, first, draw(of(7, "a"), cells, 4))
	require.Equal(t, cells, draw(of(7, "a"), cells, 100), "not more than there are")
}

func TestSeedAndWholeAreOfTheEnvironment(t *testing.T) {
	t.Setenv(WholeVariable, "")
	require.False(t, Whole())
	require.Len(t, Cells(t, []int{1, 2, 3}, 2), 2)
	t.Setenv(WholeVariable, "all")
	require.True(t, Whole())
	require.Equal(t, []int{1, 2, 3}, Cells(t, []int{1, 2, 3}, 2))
	require.Equal(t, Seed(t), Seed(t))
}
