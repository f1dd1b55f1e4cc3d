package main

import (
	"bytes"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
	"github.com/stretchr/testify/require"
)

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
