package arch

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// glossaryPage has the tables of packages and names.
const glossaryPage = "docs/ARCHITECTURE.md"

// TestPackagesListed: the table of packages has every package, by itself or with all
// below a directory.
func TestPackagesListed(t *testing.T) {
	tr := load(t, "../..")
	_, rest, ok := strings.Cut(string(tr.texts[glossaryPage]), "\n## Packages\n")
	require.True(t, ok)
	rest, _, _ = strings.Cut(rest, "\n## ")
	var listed []string
	for line := range strings.Lines(rest) {
		if row, ok := strings.CutPrefix(line, "| `"); ok {
			names, _, _ := strings.Cut(row, " |")
			listed = append(listed, strings.Split(strings.ReplaceAll(names, "`", ""), ", ")...)
		}
	}
	packages := tr.packages()
	for _, dir := range packages {
		if !matchesAny(dir, listed) {
			t.Errorf("%s: package %s is not in the table", glossaryPage, dir)
		}
	}
	for _, name := range listed {
		if !slices.ContainsFunc(packages, func(dir string) bool { return matches(dir, name) }) {
			t.Errorf("%s: there is no package %s", glossaryPage, name)
		}
	}
}

// TestNamesListed: the section that lists the names users see has those of the code
// and no others.
func TestNamesListed(t *testing.T) {
	tr := load(t, "../..")
	_, rest, ok := strings.Cut(string(tr.texts[glossaryPage]), "\n## Names\n")
	require.True(t, ok)
	rest, _, _ = strings.Cut(rest, "\n## ")
	var listed, want []string
	for _, m := range regexp.MustCompile("`([a-z-]+)`").FindAllStringSubmatch(rest, -1) {
		listed = append(listed, m[1])
	}
	for _, names := range words {
		want = append(want, names...)
	}
	slices.Sort(want)
	slices.Sort(listed)
	require.Equal(t, slices.Compact(want), slices.Compact(listed))
}
