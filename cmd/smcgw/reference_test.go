package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/internal/golden"
)

// TestReference: docs/reference/commands.md has every verb.
func TestReference(t *testing.T) {
	e, _, _ := testEnv()
	root := newRoot(e)
	var b strings.Builder
	b.WriteString("# Commands\n\n" +
		"Generated from `cmd/smcgw` by `make docs`; `smcgw VERB --help` and the man pages explain flags. `--json` prints one document with a `schema` such as\n" +
		"`smcgw.status/v1`, which may gain fields within its version, but neither loses nor changes any. Only data goes to standard output.\n" +
		"Verbs that ask the daemon take `--socket PATH`; without it they ask the one at `admin` of `/etc/smcgw/smcgw.yaml`, or at\n" +
		"`/run/smcgw/smcgw.sock` if that names none or is not readable. Verbs that print a table take `--no-header` and `-o table|wide|json` (bugreport: a file),\n" +
		"those that read a configuration `-c FILE` (by default /etc/smcgw/smcgw.yaml for `check` and `up`).\n\n" +
		"| exit status | means |\n|---:|---|\n")
	for status, meaning := range []string{
		exitOK:          "done",
		exitFailed:      "the operation failed",
		exitUsage:       "the command line was not understood",
		exitUnreachable: "no daemon answers",
		exitFindings:    "`check` or `doctor` found errors, `ping` a connection that no device carries",
		exitDegraded:    "`status --strict`: the gateway is degraded; one that is switched off or drains is not",
	} {
		require.NotEmpty(t, meaning)
		fmt.Fprintf(&b, "| %d | %s |\n", status, meaning)
	}
	b.WriteString("\n| command | does |\n|---|---|\n")
	for _, path := range commandPaths(root) {
		c, _, err := root.Find(path)
		require.NoError(t, err)
		fmt.Fprintf(&b, "| `%s` | %s |\n", cell(strings.TrimSuffix(c.UseLine(), " [flags]")), cell(c.Short))
	}
	golden.Page(t, "docs/reference/commands.md", b.String())
}

// cell makes a text fit into a cell of a table.
func cell(s string) string { return strings.ReplaceAll(s, "|", "\\|") }
