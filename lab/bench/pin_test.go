package bench

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestChoosePins(t *testing.T) {
	for _, tt := range []struct {
		allowed        []int
		cores          map[int]string
		client, server int
	}{
		{[]int{0, 1}, map[int]string{0: "0", 1: "1"}, 0, 1},
		{[]int{0, 1, 2, 3}, map[int]string{0: "0-1", 1: "0-1", 2: "2-3", 3: "2-3"}, 0, 2},
		{[]int{2, 6, 3}, map[int]string{2: "2,6", 6: "2,6", 3: "3,7"}, 2, 3},
		{[]int{4, 5}, map[int]string{4: "4-5", 5: "4-5"}, 4, 5}, // one core: its threads
		{[]int{3}, nil, 0, 0},
		{nil, nil, 0, 0},
	} {
		p := choosePins(tt.allowed, func(cpu int) string { return tt.cores[cpu] })
		require.Equal(t, pins{tt.client, tt.server, len(tt.allowed)}, p)
	}
}
