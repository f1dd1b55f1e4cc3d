package arch

import (
	"fmt"
	"go/ast"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Most bytes of a document: what is read in one sitting.
const (
	maxOverview  = 16 << 10 // of a page that gives an overview
	maxDesign    = 10 << 10 // of the design of one feature
	maxReference = 48 << 10 // of what is looked up
)

// overviews are the pages that a newcomer reads whole.
var overviews = []string{"README.md", "CONTRIBUTING.md", "docs/ARCHITECTURE.md", "docs/BENCHMARKS.md", "docs/PROTOCOL.md", "docs/SECURITY.md"}

// isDocument tells whether a text is written for readers of the project as it is now.
func isDocument(name string) bool {
	return path.Ext(name) == ".md" && (under(name, "docs") || slices.Contains(overviews, name))
}

// documentCap is the most bytes that a document may have. Results of benchmarks are
// records, not documents.
func documentCap(name string) int {
	switch {
	case slices.Contains(overviews, name):
		return maxOverview
	case under(name, "docs/design"):
		return maxDesign
	case under(name, "docs/bench"):
		return 1 << 20
	default:
		return maxReference
	}
}

func documentSize(tr *tree) (problems []string) {
	for name, text := range tr.texts {
		if isDocument(name) && len(text) > documentCap(name) {
			problems = append(problems, fmt.Sprintf("%s: %d bytes, more than %d", name, len(text), documentCap(name)))
		}
	}
	return problems
}

// term is a row of the glossary.
type term struct {
	word    string
	instead []string // words that it stands in for
}

// glossaryPage has the glossary: a table of words, meanings, and the words that a
// reader must not have to know besides.
const glossaryPage = "docs/ARCHITECTURE.md"

// glossary reads the rows below the heading.
func (tr *tree) glossary() (terms []term) {
	_, rest, _ := strings.Cut(string(tr.texts[glossaryPage]), "\n## Glossary\n")
	rest, _, _ = strings.Cut(rest, "\n## ")
	for line := range strings.Lines(rest) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		if len(cells) != 3 || strings.HasPrefix(cells[0], "---") || strings.TrimSpace(cells[2]) == "not" {
			continue
		}
		t := term{word: strings.Trim(strings.TrimSpace(cells[0]), "*")}
		for w := range strings.SplitSeq(cells[2], ",") {
			if w = strings.TrimSpace(w); w != "" {
				t.instead = append(t.instead, w)
			}
		}
		terms = append(terms, t)
	}
	return terms
}

// code is a name in backquotes, which is the code's word and not the text's.
var code = regexp.MustCompile("`[^`\n]*`")

// keepsToGlossary tells whether a text may have only the words of the glossary.
func keepsToGlossary(name string) bool {
	return name == "CHANGELOG.md" || isDocument(name) && !under(name, "docs/bench") && !under(name, "docs/reference")
}

// oneWord wants documents to use the word of the glossary and none of those it stands
// in for. Results are records, and the words of generated pages are the code's.
func oneWord(tr *tree) (problems []string) {
	for _, t := range tr.glossary() {
		for _, w := range t.instead {
			banned := regexp.MustCompile(`(?i)\b` + regexp.QuoteMeta(w) + `\b`)
			for name, text := range tr.texts {
				if keepsToGlossary(name) {
					problems = append(problems, wordsIn(name, string(text), banned, t.word)...)
				}
			}
		}
	}
	slices.Sort(problems)
	return problems
}

func wordsIn(name, text string, banned *regexp.Regexp, word string) (problems []string) {
	in := ""
	number := 0
	for line := range strings.Lines(prose(text)) {
		number++
		if strings.HasPrefix(line, "## ") {
			in = strings.TrimSpace(line)
		}
		if name == glossaryPage && in == "## Glossary" {
			continue
		}
		if found := banned.FindString(code.ReplaceAllString(line, "")); found != "" {
			problems = append(problems, fmt.Sprintf("%s:%d: %q, where the glossary has %q", name, number, found, word))
		}
	}
	return problems
}

// oneWordInComments wants of comments what oneWord wants of documents. An exported name
// with a refused word is the code's, not the comment's.
func oneWordInComments(tr *tree) (problems []string) {
	var refused []string
	for _, term := range tr.glossary() {
		for _, w := range term.instead {
			refused = append(refused, regexp.QuoteMeta(w))
		}
	}
	if refused == nil {
		return nil
	}
	word := regexp.MustCompile(`(?i)\b(?:` + strings.Join(refused, "|") + `)\b`)
	exported := tr.exportedNames()
	for name, text := range tr.texts {
		if !slices.Contains([]string{".go", ".c", ".h"}, path.Ext(name)) || tr.isGenerated(name) {
			continue
		}
		number := 0
		for line := range strings.Lines(string(text)) {
			number++
			if !commented(line) {
				continue
			}
			if _, after, ok := strings.Cut(line, "//"); ok {
				line = after
			}
			for _, found := range word.FindAllString(line, -1) {
				if !exported[found] {
					problems = append(problems, fmt.Sprintf("%s:%d: %q, which the glossary refuses", name, number, found))
					break
				}
			}
		}
	}
	slices.Sort(problems)
	return problems
}

// exportedNames are the exported names that the tree declares.
func (tr *tree) exportedNames() map[string]bool {
	names := map[string]bool{}
	add := func(ids ...*ast.Ident) {
		for _, id := range ids {
			names[id.Name] = names[id.Name] || id.IsExported()
		}
	}
	for _, f := range tr.files {
		ast.Inspect(f.syntax, func(n ast.Node) bool {
			switch d := n.(type) {
			case *ast.FuncDecl:
				add(d.Name)
			case *ast.TypeSpec:
				add(d.Name)
			case *ast.ValueSpec:
				add(d.Names...)
			case *ast.Field:
				add(d.Names...)
			}
			return true
		})
	}
	return names
}

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
