package arch

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

// module is the module path of the project.
const module = "github.com/smcgw/smcgw"

// source is one Go file.
type source struct {
	path      string // relative to the root, with slashes
	dir       string // of the path; "." is the root
	syntax    *ast.File
	text      []byte
	generated bool
	test      bool
}

// tree is the source of a module.
type tree struct {
	fset  *token.FileSet
	files []source
	texts map[string][]byte // every text file, Go or not
	other map[string]bool   // files that are no text: objects, pictures
	dirs  map[string]bool
}

// ownModule: a directory with a module of its own, such as the packager, is outside of
// the program.
func ownModule(root, dir string) bool {
	if dir == root {
		return false
	}
	_, err := os.Stat(filepath.Join(dir, "go.mod"))
	return err == nil
}

// skipped directories hold no source: results of builds, of version control and
// of failed model tests.
var skipped = []string{".git", "bin", "dist", "rapid"}

// load reads the tree below root.
func load(t *testing.T, root string) *tree {
	t.Helper()
	tr := &tree{fset: token.NewFileSet(), texts: map[string][]byte{}, other: map[string]bool{}, dirs: map[string]bool{}}
	require.NoError(t, filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if slices.Contains(skipped, d.Name()) || ownModule(root, name) {
				return fs.SkipDir
			}
			return nil
		}
		if !d.Type().IsRegular() {
			return nil
		}
		rel, err := filepath.Rel(root, name)
		if err != nil {
			return err
		}
		return tr.add(filepath.ToSlash(rel), name)
	}))
	return tr
}

func (tr *tree) add(rel, name string) error {
	b, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	tr.dirs[path.Dir(rel)] = true
	if !utf8.Valid(b) || bytes.IndexByte(b, 0) >= 0 {
		tr.other[rel] = true
		return nil
	}
	tr.texts[rel] = b
	if path.Ext(rel) != ".go" || strings.Contains(rel, "testdata/") {
		return nil
	}
	f, err := parser.ParseFile(tr.fset, rel, b, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return fmt.Errorf("parse: %w", err)
	}
	tr.files = append(tr.files, source{
		path: rel, dir: path.Dir(rel), syntax: f, text: b,
		generated: ast.IsGenerated(f), test: strings.HasSuffix(rel, "_test.go"),
	})
	return nil
}

// imports lists the paths a file imports.
func (s source) imports() []string {
	var paths []string
	for _, spec := range s.syntax.Imports {
		if p, err := strconv.Unquote(spec.Path.Value); err == nil {
			paths = append(paths, p)
		}
	}
	return paths
}

// line says where a node is, for a problem's text.
func (tr *tree) line(n ast.Node) string {
	p := tr.fset.Position(n.Pos())
	return fmt.Sprintf("%s:%d", p.Filename, p.Line)
}

// packages lists the directories with Go files that are no tests.
func (tr *tree) packages() []string {
	var dirs []string
	for _, f := range tr.files {
		if !f.test && !slices.Contains(dirs, f.dir) {
			dirs = append(dirs, f.dir)
		}
	}
	slices.Sort(dirs)
	return dirs
}

// under tells whether a directory is dir or below it.
func under(dir, parent string) bool {
	return dir == parent || strings.HasPrefix(dir, parent+"/")
}
