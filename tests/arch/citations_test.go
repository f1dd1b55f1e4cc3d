package arch

import (
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"
)

// citation is how comments cite our documents: the path, and the section in
// quotes.
var citation = regexp.MustCompile(`docs/[A-Z]+\.md(?:,? "([^"\n]+)")?`)

// heading is a section of a document; its number is not part of its name.
var heading = regexp.MustCompile(`(?m)^#+ +(?:[0-9.]+ +)?(.+?) *$`)

// pageless are citations of a text that readers do not have.
var pageless = regexp.MustCompile(`\bDESIGN ?` + `§ ?[0-9]`)

// citationsHold wants every document and section that a comment cites to be
// there.
func citationsHold(tr *tree) (problems []string) {
	for name, text := range tr.texts {
		if ext := path.Ext(name); ext != ".go" && ext != ".c" && ext != ".h" {
			continue
		}
		problems = append(problems, grep(name, text, pageless)...)
		number := 0
		for line := range strings.Lines(string(text)) {
			number++
			for _, m := range citation.FindAllStringSubmatch(line, -1) {
				file, _, _ := strings.Cut(m[0], ".md")
				if !tr.hasSection(file+".md", m[1]) {
					problems = append(problems, fmt.Sprintf("%s:%d: %s is not there", name, number, m[0]))
				}
			}
		}
	}
	slices.Sort(problems)
	return problems
}

// hasSection looks for a document and, unless section is empty, for a heading.
func (tr *tree) hasSection(doc, section string) bool {
	text, ok := tr.texts[doc]
	if !ok || section == "" {
		return ok
	}
	for _, m := range heading.FindAllSubmatch(text, -1) {
		if string(m[1]) == section {
			return true
		}
	}
	return false
}
