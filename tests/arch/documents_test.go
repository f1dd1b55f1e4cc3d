package arch

import (
	"go/ast"
	"go/token"
	"regexp"
	"slices"
	"strconv"
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
	var listed []string
	for _, m := range regexp.MustCompile("`([a-z-]+)`").FindAllStringSubmatch(rest, -1) {
		listed = append(listed, m[1])
	}
	require.ElementsMatch(t, tr.words(), listed)
}

// words are the values of the gateway's types of names, and the states of a flow.
func (tr *tree) words() (list []string) {
	types := []string{"Mode", "Action", "Carrier", "DeviceKind", "Side"}
	for _, f := range tr.files {
		if f.test || !under(f.dir, "gateway") {
			continue
		}
		ast.Inspect(f.syntax, func(n ast.Node) bool {
			spec, ok := n.(*ast.ValueSpec)
			if !ok {
				return true
			}
			kind, typed := spec.Type.(*ast.Ident)
			if typed && slices.Contains(types, kind.Name) || spec.Names[0].Name == "phaseNames" {
				list = append(list, literals(spec)...)
			}
			return false
		})
	}
	return list
}

// literals are the strings in a declaration that say something.
func literals(spec *ast.ValueSpec) (list []string) {
	ast.Inspect(spec, func(n ast.Node) bool {
		if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING {
			if word, err := strconv.Unquote(lit.Value); err == nil && word != "" {
				list = append(list, word)
			}
		}
		return true
	})
	return list
}
