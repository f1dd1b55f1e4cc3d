package bench

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestParseCPU(t *testing.T) {
	b, err := os.ReadFile("testdata/stat.txt")
	require.NoError(t, err)
	want := ticks{busy: 1 + 2 + 3 + 6 + 7, all: 1 + 2 + 3 + 4 + 5 + 6 + 7 + 8}
	got, err := parseCPU(string(b))
	require.NoError(t, err)
	require.Equal(t, want, got)
	line, _, _ := strings.Cut(string(b), "\n")
	_, err = parseCPU(line[:strings.LastIndex(line, " 8")])
	require.ErrorIs(t, err, errNoCPU)
	_, err = parseCPU("cpu0 1 2 3 4 5 6 7 8 9 10\n")
	require.ErrorIs(t, err, errNoCPU)
}
