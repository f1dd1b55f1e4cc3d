package demo

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/lab/apps"
	"github.com/smcgw/smcgw/lab/leak"
)

func TestMain(m *testing.M) {
	apps.Init()
	os.Exit(leak.Main(m))
}

func TestReportFailsWhenALineDoes(t *testing.T) {
	var out strings.Builder
	r := table{out: &out}
	r.add(line{name: "good", ok: true, unit: "x", direct: []float64{1, 3, 2}, carried: []float64{2, 3, 2}})
	require.NoError(t, r.print())
	require.Contains(t, out.String(), "2.0 x")
	require.Contains(t, out.String(), "1.00 (1.00–2.00), more is better")
	r.add(line{name: "bad"})
	require.ErrorIs(t, r.print(), ErrExpectation)
	require.Contains(t, out.String(), "FAILED")
}
