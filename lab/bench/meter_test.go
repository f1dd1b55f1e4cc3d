package bench

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/lab/testnet"
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

func TestParseProcess(t *testing.T) {
	rollup := "00400000-7fff Pss 1 rollup\nRss:   10 kB\nPss:     1234 kB\nPss_Dirty: 3 kB\nPss_Anon: 0 kB\n"
	pss, err := parseKiB(rollup, "Pss:")
	require.NoError(t, err)
	require.InDelta(t, 1234, pss, 1e-9)
	pss, err = parseKiB(rollup, "Pss_Anon:")
	require.NoError(t, err)
	require.Zero(t, pss)
	for _, bad := range []string{"Rss: 10 kB\n", "Pss: -1 kB\n", "Pss: many kB\n", "Pss: 1"} {
		_, err = parseKiB(bad, "Pss:")
		require.ErrorIs(t, err, testnet.ErrOutput, bad)
	}
}
