package arch

import (
	"fmt"
	"go/ast"
	"slices"
	"strings"
)

// rooms are the packages that serve only others of this module: what they export is
// used outside of them. The libraries (verbs, rsocket, rmb) have an API of their
// own.
var rooms = []string{
	"gateway/...", "negotiate/...", "netstack/...", "packet", "cmd/smcgw/internal/...",
	"internal/...", "verbs/internal/...", "rsocket/internal/...",
}

// wellKnown are methods that other modules call by interfaces.
var wellKnown = strings.Fields(`String Error Unwrap Is As Timeout Temporary Read Write Close Len Less Swap Push Pop
	MarshalText UnmarshalText MarshalJSON UnmarshalJSON MarshalYAML UnmarshalYAML Describe Collect Enabled Handle WithAttrs
	WithGroup LogValue Accept Addr LocalAddr RemoteAddr SetDeadline SetReadDeadline SetWriteDeadline`)

// exportsUsed wants functions, methods and variables that a room exports to be named
// outside of it. It compares names: a method that shares its name with another one
// passes. Errors may be there for their callers.
func exportsUsed(tr *tree) (problems []string) {
	named, methods := tr.namesByUser(), tr.interfaceMethods()
	for _, f := range tr.files {
		if f.test || f.generated || !matchesAny(f.dir, rooms) {
			continue
		}
		for _, id := range exportedValues(f.syntax) {
			users := named[id.Name]
			used := len(users) > 1 || len(users) == 1 && !users[f.dir]
			if !used && !methods[id.Name] && !slices.Contains(wellKnown, id.Name) && !strings.HasPrefix(id.Name, "Err") {
				problems = append(problems, fmt.Sprintf("%s: %s is exported and not used outside of %s", tr.line(id), id.Name, f.dir))
			}
		}
	}
	return problems
}

// namesByUser lists which directories name an identifier after a dot. The external
// tests of a package are other users.
func (tr *tree) namesByUser() map[string]map[string]bool {
	named := map[string]map[string]bool{}
	for _, f := range tr.files {
		user := f.dir
		if strings.HasSuffix(f.syntax.Name.Name, "_test") {
			user += " test"
		}
		ast.Inspect(f.syntax, func(n ast.Node) bool {
			if s, ok := n.(*ast.SelectorExpr); ok && s.Sel.IsExported() {
				if named[s.Sel.Name] == nil {
					named[s.Sel.Name] = map[string]bool{}
				}
				named[s.Sel.Name][user] = true
			}
			return true
		})
	}
	return named
}

// interfaceMethods lists the methods of all interfaces of the module.
func (tr *tree) interfaceMethods() map[string]bool {
	methods := map[string]bool{}
	for _, f := range tr.files {
		ast.Inspect(f.syntax, func(n ast.Node) bool {
			if t, ok := n.(*ast.InterfaceType); ok {
				for _, m := range t.Methods.List {
					for _, id := range m.Names {
						methods[id.Name] = true
					}
				}
			}
			return true
		})
	}
	return methods
}

// exportedValues lists the exported functions, methods of exported types, and variables
// of a file.
func exportedValues(f *ast.File) (ids []*ast.Ident) {
	for _, d := range f.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			if d.Recv == nil || ast.IsExported(receiver(d)) {
				ids = append(ids, d.Name)
			}
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				if v, ok := spec.(*ast.ValueSpec); ok && d.Tok.String() == "var" {
					ids = append(ids, v.Names...)
				}
			}
		}
	}
	return slices.DeleteFunc(ids, func(id *ast.Ident) bool { return !id.IsExported() })
}
