package config

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestLoops(t *testing.T) {
	for _, c := range []struct{ shards, processors, want int }{
		{0, 1, 1}, {0, 2, 1}, {0, 7, 3}, {0, 32, 16}, {0, 34, 16}, {0, 512, 16}, {1, 64, 1}, {5, 2, 5}, {16, 4, 16},
	} {
		require.Equal(t, c.want, Config{Shards: c.shards}.Loops(c.processors), "%+v", c)
	}
}
