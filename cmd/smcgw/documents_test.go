package main

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/internal/golden"
)

// TestDocumentedCommands: every command line that the documents, the unit and the scripts of the
// packages have is one of this program.
func TestDocumentedCommands(t *testing.T) {
	var files []string
	for _, pattern := range []string{
		"README.md", "CONTRIBUTING.md", "docs/*.md", "docs/operations/*.md", "docs/design/*.md", "docs/protocol/*.md", "docs/reference/*.md",
		"packaging/smcgw.yaml", "packaging/systemd/*", "packaging/scripts/*",
	} {
		found, err := filepath.Glob(filepath.Join("../..", pattern))
		require.NoError(t, err)
		require.NotEmpty(t, found, pattern)
		files = append(files, found...)
	}
	// In the middle of a line, or a line of its own after a prompt; a place for what the reader
	// fills in is in capitals.
	line := regexp.MustCompile("(?m)`smcgw ([^`|]+)`|^(?:[ab]?# |\\$ | {4})smcgw (.+)$|/usr/bin/smcgw (.+)$")
	rest := regexp.MustCompile(`\s+(#|\||>).*$`) // a comment, or of the shell
	e, _, _ := testEnv()
	root := newRoot(e)
	root.InitDefaultHelpCmd()
	seen := 0
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		for _, m := range line.FindAllStringSubmatch(string(text), -1) {
			args := strings.Fields(rest.ReplaceAllString(m[1]+m[2]+m[3], ""))
			if args[0] == "VERB" {
				continue
			}
			seen++
			c, given, err := root.Find(args)
			require.NoError(t, err, "%s: %s", file, m[0])
			require.True(t, c != root, "%s: %s", file, m[0])
			c.InitDefaultHelpFlag()
			for _, arg := range given {
				if arg == "--" { // what follows is another program's
					break
				}
				if name, isFlag := strings.CutPrefix(arg, "--"); isFlag {
					name, _, _ = strings.Cut(name, "=")
					require.NotNil(t, c.Flags().Lookup(name), "%s: %s", file, m[0])
				} else if name, isFlag := strings.CutPrefix(arg, "-"); isFlag && name != "" {
					require.NotNil(t, c.Flags().ShorthandLookup(name), "%s: %s", file, m[0])
				}
			}
		}
	}
	require.Greater(t, seen, 180)
}

// TestReleaseEverywhere: the change log, the chart and the quick start speak of the version that this tree is.
func TestReleaseEverywhere(t *testing.T) {
	for file, want := range map[string]string{
		"CHANGELOG.md":                           "\n## " + release + "\n",
		"docs/operations/quickstart.md":          "\nsmcgw " + release,
		"packaging/kubernetes/chart/Chart.yaml":  "\nappVersion: " + release + "\n",
		"packaging/kubernetes/chart/values.yaml": "tag: " + release + "\n",
	} {
		text, err := os.ReadFile(filepath.Join("../..", file))
		require.NoError(t, err)
		require.Contains(t, string(text), want, file)
	}
	require.Equal(t, release, buildVersion())
}

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

// manDir is where `make install` wants the manual pages.
var manDir = flag.String("man", "", "directory for the manual pages")

// TestManPages writes a manual page for each verb, and man(1) finds nothing wrong with it.
func TestManPages(t *testing.T) {
	e, _, _ := testEnv()
	root := newRoot(e)
	root.DisableAutoGenTag = true
	tellExitStatus(root)
	dir := *manDir
	if dir == "" {
		dir = t.TempDir()
	}
	require.NoError(t, doc.GenManTree(root, &doc.GenManHeader{
		Section: "1", Source: "smcgw", Manual: "smcgw", Date: buildDate(t),
	}, dir))
	for _, path := range append([][]string{nil}, commandPaths(root)...) {
		name := "smcgw"
		for _, part := range path {
			name += "-" + part
		}
		file := filepath.Join(dir, name+".1")
		page, err := os.ReadFile(file)
		require.NoError(t, err)
		page = bytes.ReplaceAll(page, []byte("[=false]"), nil) // flags that are given or not
		require.NoError(t, os.WriteFile(file, page, 0o644))
		require.Contains(t, string(page), exitStatus, file)
		if _, err := exec.LookPath("man"); err != nil {
			continue
		}
		cmd := exec.CommandContext(t.Context(), "man", "--warnings", "-l", file)
		cmd.Env = append(os.Environ(), "LC_ALL=C.UTF-8", "MANWIDTH=120", "MANROFFSEQ=")
		var errs errorText
		cmd.Stderr = &errs
		require.NoError(t, cmd.Run())
		require.Empty(t, string(errs), file)
	}
}

const exitStatus = "Exit status:"

// tellExitStatus has every page say what the exit status means. A verb that does not say it
// has the statuses that smcgw itself tells.
func tellExitStatus(c *cobra.Command) {
	if !strings.Contains(c.Long, exitStatus) {
		_, statuses, _ := strings.Cut(c.Root().Long, exitStatus)
		if c.Long == "" {
			c.Long = c.Short + "."
		}
		c.Long += "\n\n" + exitStatus + statuses
	}
	for _, below := range c.Commands() {
		tellExitStatus(below)
	}
}

type errorText []byte

// Write implements io.Writer.
func (e *errorText) Write(p []byte) (int, error) {
	*e = append(*e, p...)
	return len(p), nil
}

// buildDate makes pages the same whenever they are built.
func buildDate(t *testing.T) *time.Time {
	t.Helper()
	at := time.Unix(0, 0).UTC()
	if text := os.Getenv("SOURCE_DATE_EPOCH"); text != "" {
		seconds, err := strconv.ParseInt(text, 10, 64)
		require.NoError(t, err)
		at = time.Unix(seconds, 0).UTC()
	}
	return &at
}
