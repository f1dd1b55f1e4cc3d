package main

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/cmd/smcgw/internal/screen"
	"github.com/smcgw/smcgw/internal/golden"
	"github.com/smcgw/smcgw/verbs/hw/sysfs"
)

// testEnv is a world that collects what is printed.
func testEnv() (e *env, stdout, stderr *bytes.Buffer) {
	stdout, stderr = new(bytes.Buffer), new(bytes.Buffer)
	return &env{stdout: stdout, stderr: stderr, getenv: func(string) string { return "" }}, stdout, stderr
}

// commandPaths lists all command lines that name a verb.
func commandPaths(c *cobra.Command) [][]string {
	var out [][]string
	for _, sub := range c.Commands() {
		if sub.Name() == "help" || sub.Hidden {
			continue // cobra's own, or started by the program itself
		}
		out = append(out, strings.Fields(sub.CommandPath())[1:])
		out = append(out, commandPaths(sub)...)
	}
	return out
}

// TestHelp pins the help texts, which are an interface too.
func TestHelp(t *testing.T) {
	e, _, _ := testEnv()
	var all bytes.Buffer
	for _, path := range append([][]string{nil}, commandPaths(newRoot(e))...) {
		e, stdout, stderr := testEnv()
		require.Equal(t, exitOK, run(t.Context(), e, append(path, "--help")))
		require.Empty(t, stderr.String())
		fmt.Fprintf(&all, "== smcgw %s\n%s\n", strings.Join(append(path, "--help"), " "), stdout.String())
	}
	for line := range strings.Lines(all.String()) {
		require.LessOrEqual(t, utf8.RuneCountInString(line), screen.Columns+1, line)
	}
	golden.File(t, "help.golden", all.String())
}

// TestHelpOnANarrowTerminal: help fits 80 columns.
func TestHelpOnANarrowTerminal(t *testing.T) {
	e, _, _ := testEnv()
	for _, path := range append([][]string{nil}, commandPaths(newRoot(e))...) {
		e, stdout, _ := testEnv()
		e.terminal = func(io.Writer) int { return 80 }
		require.Equal(t, exitOK, run(t.Context(), e, append(path, "--help")))
		for line := range strings.Lines(stdout.String()) {
			require.LessOrEqual(t, utf8.RuneCountInString(line), 81, "%v: %s", path, line)
		}
	}
}

// TestEveryVerbOffersJSON: all but those that print no data.
func TestEveryVerbOffersJSON(t *testing.T) {
	e, _, _ := testEnv()
	for _, path := range commandPaths(newRoot(e)) {
		c, _, err := newRoot(e).Find(path)
		require.NoError(t, err)
		if name := strings.Join(path, " "); name != "up" && name != "completion" {
			require.NotNil(t, c.Flags().Lookup("json"), name)
		}
	}
}

// TestEveryVerbHasAScript: a verb without a test is not finished.
func TestEveryVerbHasAScript(t *testing.T) {
	e, _, _ := testEnv()
	for _, c := range newRoot(e).Commands() {
		if c.Hidden {
			continue
		}
		require.FileExists(t, "testdata/script/"+c.Name()+".txtar")
	}
}

// Lines of watch fit a terminal, and name the other host and the reason on each.
func TestWatchOnANarrowTerminal(t *testing.T) {
	for terminal, names := range map[int]string{
		0:   "TIME EVENT ID SIDE LOCAL REMOTE CARRIER REASON TX RX",
		100: "TIME EVENT LOCAL REMOTE CARRIER REASON",
		80:  "TIME EVENT REMOTE CARRIER REASON",
		40:  "TIME EVENT REMOTE CARRIER REASON",
	} {
		var list []string
		for _, c := range columnsWithin(terminal) {
			list = append(list, c.name)
		}
		require.Equal(t, names, strings.Join(list, " "), terminal)
	}
}

// TestNarrowTerminal: no line of what people read while they look for a cause is wider than
// a terminal of 80 columns, and no reason is shortened.
func TestNarrowTerminal(t *testing.T) {
	_, cfg := serveFake(t, "degraded")
	for _, args := range [][]string{{"status"}, {"conns"}, {"conns", "--all"}, {"doctor"}, {"peers"}, {"policy"}, {"policy", "--services"}, {"codes"}, {"codes", "wire_reset"}, {"stats"}} {
		e, stdout, stderr := testEnv()
		e.terminal, e.host = func(io.Writer) int { return 80 }, healthyHost()
		e.rdma = func() (sysfs.RDMA, error) { return sampleRDMA(), nil }
		e.getenv = func(name string) string { return map[string]string{"NO_COLOR": "1"}[name] }
		if args[0] != "codes" {
			args = append(args, "--socket", cfg.Admin)
		}
		run(t.Context(), e, args)
		require.NotEmpty(t, stdout.String(), "%v %s", args, stderr)
		for line := range strings.Lines(stdout.String()) {
			require.LessOrEqual(t, utf8.RuneCountInString(line), 81, "%v: %s", args, line)
		}
		if args[0] == "conns" {
			require.NotRegexp(t, `[a-z]…[a-z]+\)`, stdout.String())
		}
	}
}
