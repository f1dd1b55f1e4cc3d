package main

import (
	"io"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/cmd/smcgw/internal/screen"
	"github.com/smcgw/smcgw/gateway/admin"
	"github.com/smcgw/smcgw/gateway/report"
)

// A picture on a terminal replaces the one before, and has no more lines than that.
func TestTopOnATerminal(t *testing.T) {
	_, cfg := serveFake(t, "")
	e, stdout, stderr := testEnv()
	e.terminal = func(io.Writer) int { return 100 }
	require.Equal(t, exitOK, run(t.Context(), e, []string{"top", "-n", "2", "--interval", "100ms", "--socket", cfg.Admin}), stderr)
	require.Regexp(t, `^\x1b\[\?1049h\x1b\[\?25l\x1b\[H`, stdout.String())
	require.Regexp(t, `\x1b\[J\x1b\[H(?s:.)*\x1b\[J\x1b\[\?25h\x1b\[\?1049l$`, stdout.String())
	require.Equal(t, "a\x1b[K\r\nb\x1b[K", screen.Fitted("a\nb\nc\n", 2))
}

func TestTopKeys(t *testing.T) {
	f := &topFlags{sort: "rate"}
	for key, want := range map[byte]string{'b': "bytes", 'a': "age", 'r': "rate"} {
		require.True(t, f.press(key))
		require.Equal(t, want, f.sort)
		require.Contains(t, topOrders(), f.sort)
	}
	require.True(t, f.press('x'))
	require.False(t, f.press('q'))
	require.False(t, f.press(3))
}

// A drain on a terminal is a bar.
func TestDrainOnATerminal(t *testing.T) {
	d, cfg := serveFake(t, "")
	d.end = func() {}
	e, stdout, stderr := testEnv()
	e.terminal = func(io.Writer) int { return 100 }
	require.Equal(t, exitOK, run(t.Context(), e, []string{"drain", "--socket", cfg.Admin}), stderr)
	require.Contains(t, stdout.String(), "  0%  3 connections left, reset in 1m0s")
	require.Regexp(t, `\r\x1b\[Kdrained, 0 connections left\n$`, stdout.String())
}

// TestTopOrderOfJSON: documents have the order that was asked for, too.
func TestTopOrderOfJSON(t *testing.T) {
	e, stdout, _ := testEnv()
	e.json = true
	v := &topView{list: admin.ConnList{Conns: []report.ConnInfo{{ID: 1, TxBytes: 10}, {ID: 2, TxBytes: 20}}}}
	require.NoError(t, (&topFlags{sort: "bytes"}).draw(e, v, false))
	require.Regexp(t, `"id":2,.*"id":1,`, stdout.String())
}
