package arch

import (
	"fmt"
	"go/ast"
	"path"
	"regexp"
	"slices"
	"strings"
)

// noInit: effects at import time cannot be tested, ordered or refused.
func noInit(tr *tree) (problems []string) {
	for _, f := range tr.files {
		if f.generated {
			continue
		}
		for _, decl := range f.syntax.Decls {
			if d, ok := decl.(*ast.FuncDecl); ok && d.Recv == nil && d.Name.Name == "init" {
				problems = append(problems, tr.line(d)+": init function")
			}
		}
	}
	return problems
}

// looseEnds are marks of unfinished work in code.
var looseEnds = regexp.MustCompile(`\b(TO` + `DO|FIX` + `ME|X` + `XX|HA` + `CK)\b|not ` + `implemented|un` + `implemented`)

// noLooseEnds looks at code and comments, and at the names of files that were
// meant to go.
func noLooseEnds(tr *tree) (problems []string) {
	for name, text := range tr.texts {
		base := path.Base(name)
		if strings.HasPrefix(base, "zz_") || strings.HasPrefix(base, "NOTE") || strings.HasSuffix(base, ".orig") || strings.HasSuffix(base, ".rej") {
			problems = append(problems, name+": a file that does not belong here")
		}
		switch path.Ext(name) {
		case ".go", ".c", ".h", ".sh":
			problems = append(problems, grep(name, text, looseEnds)...)
		}
	}
	return problems
}

// grep reports every line that matches.
func grep(name string, text []byte, re *regexp.Regexp) (problems []string) {
	number := 0
	for line := range strings.Lines(string(text)) {
		number++
		if m := re.FindString(line); m != "" {
			problems = append(problems, fmt.Sprintf("%s:%d: %q", name, number, m))
		}
	}
	return problems
}

// leakChecks: every package with tests looks for leaks when they are over.
func leakChecks(tr *tree) (problems []string) {
	tested := map[string]bool{}
	for _, f := range tr.files {
		if !f.test || under(f.dir, "tests/arch") {
			continue
		}
		tested[f.dir] = tested[f.dir] || checksLeaks(f)
	}
	for dir, ok := range tested {
		if !ok {
			problems = append(problems, dir+": no TestMain that looks for leaks")
		}
	}
	slices.Sort(problems)
	return problems
}

func checksLeaks(f source) bool {
	for _, decl := range f.syntax.Decls {
		d, ok := decl.(*ast.FuncDecl)
		if !ok || d.Name.Name != "TestMain" {
			continue
		}
		// Where another package calls Run, the check is a method beside.
		if usesName(f.syntax, "goleak") || usesName(f.syntax, "leak") || f.dir == "lab/leak" {
			return true
		}
	}
	return false
}

// usesName looks for an identifier.
func usesName(n ast.Node, name string) (found bool) {
	ast.Inspect(n, func(n ast.Node) bool {
		if id, ok := n.(*ast.Ident); ok && id.Name == name {
			found = true
		}
		return !found
	})
	return found
}

// elsewhere matches words about how and where the project is made; the
// repository speaks about the project only.
var elsewhere = regexp.MustCompile(`(?i)/work/(main|shared)|/tmp/con` + `tract|\b(DESIGN|STYLE|OPERATORS)\.md\b|\bshared/studies\b|` +
	`\bstudies/\w+\.md\b|\bsub-?agents?\b|\bAI (agent|assistant|model)\b|\blanguage model\b|\bclau` + `de\b|\banthro` + `pic\b|` +
	`\bchat` + `gpt\b|\bthis (session|helper)\b|\b(other|previous|next) sessions?\b|\bissues (show|list) \d|\bco-authored-by\b|` +
	`\bfrom the author of\b|\bthe (brief|contract) (says|asks|wants)\b`)

func projectOnly(tr *tree) (problems []string) {
	for name, text := range tr.texts {
		if strings.Contains(name, "testdata/fuzz/") {
			continue
		}
		problems = append(problems, grep(name, text, elsewhere)...)
	}
	slices.Sort(problems)
	return problems
}

// sinceEpoch are the methods of time.Time that drop the monotonic clock.
var sinceEpoch = []string{"Unix", "UnixMilli", "UnixMicro", "UnixNano"}

// monotonicTimes: times are compared as time.Time, which keeps the reading of the
// monotonic clock; numbers since an epoch jump with the wall clock. Tests run
// on one that does not jump.
func monotonicTimes(tr *tree) (problems []string) {
	for _, f := range tr.files {
		if f.test || f.generated || under(f.dir, "lab") || under(f.dir, "tests") {
			continue
		}
		ast.Inspect(f.syntax, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok || len(call.Args) > 0 {
				return true
			}
			if sel, ok := call.Fun.(*ast.SelectorExpr); ok && slices.Contains(sinceEpoch, sel.Sel.Name) {
				problems = append(problems, fmt.Sprintf("%s: %s is a wall clock that jumps", tr.line(call), sel.Sel.Name))
			}
			return true
		})
	}
	return problems
}
