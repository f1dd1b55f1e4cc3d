package arch

import (
	"bytes"
	"fmt"
	"go/ast"
	"maps"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// A package of the product is read in one sitting, and an interface is faked in
// one screen.
const (
	maxPackageLines = 4500
	maxDeviceLines  = 5500 // of a device of verbs: queue pairs, memory and wire belong together
	maxRootLines    = 2500 // of gateway, which puts its packages together
	maxMethods      = 7
)

// widthReason begins the sentence of a doc comment that says why an interface has
// more methods than maxMethods.
const widthReason = "It has more than seven methods because "

// largePackages are those above the cap as long as they are: the number is the
// most that they may have. It is only ever lowered, and a line goes when its package
// is below the cap.
var largePackages = map[string]int{}

// largeSlack is how far a package may be below its line in largePackages before the
// line has to follow.
const largeSlack = 250

// wideInterfaces are those above maxMethods without a reason, below the directory
// that is named: the number is the most that they may have, and only ever lowered.
var wideInterfaces = map[string]int{
	"gateway Steering": 29,
	"gateway Control":  16,
	"gateway wireLeg":  14,
}

// isProduct tells whether a directory is of the product: what is neither test nor
// laboratory.
func isProduct(dir string) bool {
	return !slices.ContainsFunc([]string{"internal", "tests", "lab", "verbs/verbstest"}, func(p string) bool { return under(dir, p) })
}

// capOf is the most lines a package may have.
func capOf(dir string) int {
	switch listed, ok := largePackages[dir]; {
	case ok:
		return listed
	case dir == "gateway":
		return maxRootLines
	case path.Dir(dir) == "verbs" && slices.Contains([]string{"shm", "soft", "hw"}, path.Base(dir)):
		return maxDeviceLines
	default:
		return maxPackageLines
	}
}

// packageLines counts the lines of each package, tests and generated files left out.
func packageLines(tr *tree) map[string]int {
	lines := map[string]int{}
	for _, f := range tr.files {
		if !f.test && !f.generated && isProduct(f.dir) {
			lines[f.dir] += bytes.Count(f.text, []byte("\n"))
		}
	}
	return lines
}

func packageSize(tr *tree) (problems []string) {
	lines := packageLines(tr)
	for _, dir := range slices.Sorted(maps.Keys(lines)) {
		if n, most := lines[dir], capOf(dir); n > most {
			problems = append(problems, fmt.Sprintf("%s: %d lines, more than %d", dir, n, most))
		}
	}
	return problems
}

// TestExceptionsShrink keeps the lists of exceptions as short as the tree lets them
// be.
func TestExceptionsShrink(t *testing.T) {
	tr := load(t, filepath.Join("..", ".."))
	lines := packageLines(tr)
	for dir, most := range largePackages {
		bound := maxPackageLines
		if path.Dir(dir) == "verbs" {
			bound = maxDeviceLines
		}
		if n := lines[dir]; n <= bound {
			t.Errorf("%s has %d lines: it is no exception any more", dir, n)
		} else if n < most-largeSlack {
			t.Errorf("%s has %d lines: lower its line in largePackages (%d)", dir, n, most)
		}
	}
	all := tr.interfaces()
	for key, most := range wideInterfaces {
		parent, name, _ := strings.Cut(key, " ")
		widest := 0
		for at := range all {
			if dir, of, _ := strings.Cut(at, " "); of == name && under(dir, parent) {
				widest = max(widest, all.methods(dir, name))
			}
		}
		if widest < most {
			t.Errorf("%s has %d methods: lower its line in wideInterfaces (%d)", key, widest, most)
		}
	}
}

// interfaceWidth counts the methods of each interface, those of embedded ones
// included.
func interfaceWidth(tr *tree) (problems []string) {
	all := tr.interfaces()
	for _, f := range tr.files {
		if f.test || f.generated || !isProduct(f.dir) {
			continue
		}
		for _, d := range f.syntax.Decls {
			g, ok := d.(*ast.GenDecl)
			if !ok {
				continue
			}
			for _, s := range g.Specs {
				spec, ok := s.(*ast.TypeSpec)
				if !ok {
					continue
				}
				n := all.methods(f.dir, spec.Name.Name)
				if n > maxMethods && !explained(g.Doc, spec.Doc) && n > widthListed(f.dir, spec.Name.Name) {
					problems = append(problems, fmt.Sprintf("%s: %s has %d methods and no reason (%q)",
						tr.line(spec), spec.Name.Name, n, widthReason+"..."))
				}
			}
		}
	}
	return problems
}

// explained tells whether a doc comment has the reason.
func explained(docs ...*ast.CommentGroup) bool {
	return slices.ContainsFunc(docs, func(d *ast.CommentGroup) bool {
		return strings.Contains(strings.Join(strings.Fields(d.Text()), " "), widthReason)
	})
}

// widthListed is what wideInterfaces admits of an interface.
func widthListed(dir, name string) int {
	for key, n := range wideInterfaces {
		if parent, of, _ := strings.Cut(key, " "); of == name && under(dir, parent) {
			return n
		}
	}
	return 0
}

// interfaces are the interface types of a tree by directory and name.
type interfaces map[string]*ast.InterfaceType

func (tr *tree) interfaces() interfaces {
	all := interfaces{}
	for _, f := range tr.files {
		ast.Inspect(f.syntax, func(n ast.Node) bool {
			if spec, ok := n.(*ast.TypeSpec); ok {
				if t, ok := spec.Type.(*ast.InterfaceType); ok {
					all[f.dir+" "+spec.Name.Name] = t
				}
			}
			return true
		})
	}
	return all
}

// methods counts. An embedded interface of the same package counts with its
// methods, one of another package as one.
func (all interfaces) methods(dir, name string) (n int) {
	t := all[dir+" "+name]
	if t == nil {
		return 0
	}
	for _, m := range t.Methods.List {
		switch e := m.Type.(type) {
		case *ast.FuncType:
			n += len(m.Names)
		case *ast.Ident:
			n += all.methods(dir, e.Name)
		case *ast.SelectorExpr:
			n++
		}
	}
	return n
}
