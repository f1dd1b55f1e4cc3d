package arch

import (
	"bytes"
	"fmt"
	"go/ast"
	"path"
	"slices"
	"strings"
)

func packageComments(tr *tree) (problems []string) {
	for _, dir := range tr.packages() {
		problems = append(problems, packageComment(tr, dir)...)
	}
	return problems
}

// packageComment wants the comment in doc.go, or in main.go of a command.
func packageComment(tr *tree, dir string) []string {
	for _, f := range tr.files {
		base := path.Base(f.path)
		if f.dir != dir || f.test || f.syntax.Doc == nil || base != "doc.go" && base != "main.go" {
			continue
		}
		want := "Package " + f.syntax.Name.Name + " "
		if f.syntax.Name.Name == "main" {
			want = "Command "
		}
		if text := f.syntax.Doc.Text(); !strings.HasPrefix(text, want) {
			return []string{fmt.Sprintf("%s: package comment does not begin with %q", f.path, want)}
		}
		return nil
	}
	return []string{dir + ": no package comment in doc.go"}
}

func exportedDocs(tr *tree) (problems []string) {
	for _, f := range tr.files {
		if f.test || f.generated || f.syntax.Name.Name == "main" {
			continue
		}
		for _, decl := range f.syntax.Decls {
			switch d := decl.(type) {
			case *ast.FuncDecl:
				problems = append(problems, tr.funcDoc(d)...)
			case *ast.GenDecl:
				problems = append(problems, tr.declDocs(d)...)
			}
		}
	}
	return problems
}

func (tr *tree) funcDoc(d *ast.FuncDecl) []string {
	name := d.Name.Name
	if d.Recv != nil {
		recv := receiver(d)
		// The well-known methods, on exported types too.
		if !ast.IsExported(recv) || slices.Contains([]string{"Len", "Less", "Swap", "Unwrap"}, name) {
			return nil
		}
		name = recv + "." + name
	}
	if ast.IsExported(d.Name.Name) && d.Doc == nil {
		return []string{fmt.Sprintf("%s: %s has no doc comment", tr.line(d), name)}
	}
	return nil
}

// receiver returns the name of a method's type.
func receiver(d *ast.FuncDecl) string {
	expr := d.Recv.List[0].Type
	for {
		switch e := expr.(type) {
		case *ast.StarExpr:
			expr = e.X
		case *ast.IndexExpr:
			expr = e.X
		case *ast.IndexListExpr:
			expr = e.X
		case *ast.Ident:
			return e.Name
		default:
			return ""
		}
	}
}

// declDocs accepts, for constants and variables, the comment of the group.
func (tr *tree) declDocs(d *ast.GenDecl) (problems []string) {
	for _, spec := range d.Specs {
		switch s := spec.(type) {
		case *ast.TypeSpec:
			if s.Name.IsExported() && s.Doc == nil && (d.Doc == nil || d.Lparen.IsValid()) {
				problems = append(problems, fmt.Sprintf("%s: %s has no doc comment", tr.line(s), s.Name.Name))
			}
		case *ast.ValueSpec:
			if s.Doc != nil || s.Comment != nil || d.Doc != nil {
				continue
			}
			for _, name := range s.Names {
				if name.IsExported() {
					problems = append(problems, fmt.Sprintf("%s: %s has no doc comment", tr.line(s), name.Name))
				}
			}
		}
	}
	return problems
}

// configDocs wants every field of a configuration explained: by a comment, or
// by the comment of the field right above it.
func configDocs(tr *tree) (problems []string) {
	for _, f := range tr.files {
		if f.test || f.generated {
			continue
		}
		ast.Inspect(f.syntax, func(n ast.Node) bool {
			spec, ok := n.(*ast.TypeSpec)
			if !ok || spec.Name.Name != "Config" {
				return true
			}
			if s, ok := spec.Type.(*ast.StructType); ok {
				problems = append(problems, tr.fieldDocs(s)...)
			}
			return false
		})
	}
	return problems
}

func (tr *tree) fieldDocs(s *ast.StructType) (problems []string) {
	lastDocumented := -1
	for _, field := range s.Fields.List {
		first := tr.fset.Position(field.Pos()).Line
		last := tr.fset.Position(field.End()).Line
		if field.Doc != nil || field.Comment != nil || first == lastDocumented+1 {
			lastDocumented = last
			continue
		}
		for _, name := range field.Names {
			if name.IsExported() {
				problems = append(problems, fmt.Sprintf("%s: field %s of Config is not explained", tr.line(field), name.Name))
			}
		}
	}
	return problems
}

func licence(tr *tree) []string {
	text, ok := tr.texts["LICENSE"]
	if !ok {
		return []string{"LICENSE: missing"}
	}
	for _, want := range []string{"Apache License", "Version 2.0, January 2004", "END OF TERMS AND CONDITIONS"} {
		if !bytes.Contains(text, []byte(want)) {
			return []string{"LICENSE: not the Apache License 2.0: no " + want}
		}
	}
	return nil
}
