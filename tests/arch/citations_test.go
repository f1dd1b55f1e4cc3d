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
var citation = regexp.MustCompile(`docs/[A-Za-z/_-]+\.md(?:,? "([^"\n]+)")?`)

// heading is a section of a document; its number is not part of its name.
var heading = regexp.MustCompile(`(?m)^#+ +(?:[0-9.]+ +)?(.+?) *$`)

// link is a link of a document: its text and its target.
var link = regexp.MustCompile(`\[([^\]\n]+)\]\(([^)\s]+)\)`)

// pageless are citations of a text that readers do not have.
var pageless = regexp.MustCompile(`\bDESIGN ?` + `§ ?[0-9]`)

// cites tells whether a text may cite documents: code, documents and packaging.
func cites(name string) bool {
	if strings.Contains(name, "testdata/") {
		return false
	}
	return path.Base(name) == "Makefile" || slices.Contains([]string{".go", ".c", ".h", ".md", ".yaml", ".service"}, path.Ext(name))
}

// citationsHold wants every document and section that a text cites to be there.
func citationsHold(tr *tree) (problems []string) {
	for name, text := range tr.texts {
		if !cites(name) {
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

// hasSection looks for a document and, unless section is empty, for a heading, or for
// a link of that text: a document that was divided lists the sections of its parts.
func (tr *tree) hasSection(doc, section string) bool {
	text, ok := tr.texts[doc]
	if !ok || section == "" {
		return ok
	}
	for _, m := range append(heading.FindAllSubmatch(text, -1), link.FindAllSubmatch(text, -1)...) {
		if string(m[1]) == section {
			return true
		}
	}
	return false
}

// linksHold wants the targets of links between our documents to be there: the file,
// and the heading after #.
func linksHold(tr *tree) (problems []string) {
	for name, text := range tr.texts {
		if path.Ext(name) != ".md" || strings.Contains(name, "testdata/") {
			continue
		}
		for _, m := range link.FindAllStringSubmatch(prose(string(text)), -1) {
			target, anchor, _ := strings.Cut(m[2], "#")
			if strings.Contains(target, "://") {
				continue
			}
			if target = path.Join(path.Dir(name), target); m[2][0] == '#' {
				target = name
			}
			if !tr.exists(target) || anchor != "" && !slices.Contains(tr.anchors(target), anchor) {
				problems = append(problems, fmt.Sprintf("%s: the link %s leads nowhere", name, m[0]))
			}
		}
	}
	slices.Sort(problems)
	return problems
}

// exists tells whether a text or directory is there.
func (tr *tree) exists(name string) bool {
	_, ok := tr.texts[name]
	return ok || tr.other[name] || tr.dirs[name]
}

// anchors are the names of a document's headings in links.
func (tr *tree) anchors(doc string) (names []string) {
	for _, m := range regexp.MustCompile(`(?m)^#+ +(.+?) *$`).FindAllSubmatch(tr.texts[doc], -1) {
		words := regexp.MustCompile(`[^\pL\pN _-]`).ReplaceAllString(strings.ToLower(string(m[1])), "")
		names = append(names, strings.ReplaceAll(words, " ", "-"))
	}
	return names
}

// fenced are the blocks of a document that are not prose.
var fenced = regexp.MustCompile("(?ms)^```.*?^```$")

// prose is a document without its fenced blocks, with as many lines.
func prose(text string) string {
	return fenced.ReplaceAllStringFunc(text, func(block string) string {
		return strings.Repeat("\n", strings.Count(block, "\n"))
	})
}

// fileName is a file of ours in a text: a path, or a bare name in backquotes.
var fileName = regexp.MustCompile("(?:^|[ (`\"])((?:[a-z_]+/)+[a-z0-9_.]+\\.(?:go|c|h|md|svg|yaml|service)\\b|`[a-z0-9_]+\\.(?:go|h)`)")

// filesNamed wants the files that documents name to be there, from the root, from the
// directory of the text, or from any directory.
func filesNamed(tr *tree) (problems []string) {
	for name, text := range tr.texts {
		if path.Ext(name) != ".md" || strings.Contains(name, "testdata/") {
			continue
		}
		number := 0
		for line := range strings.Lines(prose(string(text))) {
			number++
			for _, m := range fileName.FindAllStringSubmatch(line, -1) {
				file := strings.Trim(m[1], "`")
				if top, _, deep := strings.Cut(file, "/"); deep && !tr.dirs[top] {
					continue // another project's
				}
				if !tr.isFile(file) {
					problems = append(problems, fmt.Sprintf("%s:%d: there is no %s", name, number, file))
				}
			}
		}
	}
	slices.Sort(problems)
	return problems
}

// isFile looks for a file by the end of its path.
func (tr *tree) isFile(name string) bool {
	if tr.exists(name) {
		return true
	}
	for file := range tr.texts {
		if strings.HasSuffix(file, "/"+name) {
			return true
		}
	}
	return false
}
