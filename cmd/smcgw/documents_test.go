package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
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
