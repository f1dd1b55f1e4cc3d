package arch

import (
	"fmt"
	"go/ast"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Foreign bytes: whatever a peer, a file or a local user can say. Where they come
// in there is a fuzz test, a committed corpus, and a test that cuts them short.

// doors are where foreign bytes come in by functions that are not named parse or
// decode, by package.
var doors = map[string][]string{
	"gateway/internal/datagram": {"add"}, // pieces
	"gateway/admin":             {"getConns", "postTrial"},
	"gateway/guardian":          {"receivePacket"},
	"negotiate":                 {"Next", "Receive"},               // records; handshake messages by side
	"negotiate/between":         {"Receive"},                       // messages of the control connection
	"negotiate/resolve":         {"Receive"},                       // messages of the datagram port
	"netstack":                  {"Inject"},                        // segments
	"rsocket":                   {"Receive", "HandleWC"},           // immediates and grants
	"rsocket/cm":                {"receive"},                       // MADs
	"verbs/shm":                 {"progress", "take", "gatewayOf"}, // memory, rendezvous, names
	"verbs/soft":                {"deliver"},                       // packets
}

// parserPrefixes begin the names of functions that read foreign bytes.
var parserPrefixes = []string{"parse", "decode", "unmarshal"}

// parsersFuzzed wants, for every function of the product that parses bytes or
// text, a fuzz test in its package that reaches it, and for those that parse
// bytes a test that is named after truncation. Fuzz tests have committed seeds.
func parsersFuzzed(tr *tree) (problems []string) {
	for _, dir := range tr.packages() {
		if under(dir, "tests") || under(dir, "lab") {
			continue
		}
		p := tr.calls(dir)
		fuzzed, cut := p.reachable(p.fuzzers), p.reachable(p.truncators)
		for _, name := range slices.Sorted(maps.Keys(p.parsers)) {
			at := tr.line(p.parsers[name])
			if !fuzzed[fold(name)] {
				problems = append(problems, fmt.Sprintf("%s: %s has no fuzz test", at, name))
			}
			if !cut[fold(name)] && takes(p.parsers[name], "[]byte") {
				problems = append(problems, fmt.Sprintf("%s: %s has no truncation test", at, name))
			}
		}
		for _, name := range slices.Sorted(maps.Keys(p.fuzzers)) {
			if !tr.corpus(dir, name) {
				problems = append(problems, fmt.Sprintf("%s: %s has no committed corpus", tr.line(p.fuzzers[name]), name))
			}
		}
		for _, name := range doors[dir] {
			if p.mentions[fold(name)] != nil && !fuzzed[fold(name)] {
				problems = append(problems, fmt.Sprintf("%s: %s has no fuzz test", dir, name))
			}
		}
	}
	return problems
}

// TestDoors: the table names what exists.
func TestDoors(t *testing.T) {
	tr := load(t, "../..")
	for dir, names := range doors {
		p := tr.calls(dir)
		for _, name := range names {
			require.NotNil(t, p.mentions[fold(name)], "%s: %s", dir, name)
		}
	}
}

// fold is the name under which a function is looked up: an exported function and
// the one it wraps often differ in case alone.
func fold(name string) string { return strings.ToLower(name) }

// calls is the call graph of a package, by folded name: methods of one name are
// one, and a variable calls what its value names, such as the functions of a
// table.
type calls struct {
	mentions   map[string]map[string]bool
	parsers    map[string]*ast.FuncDecl
	fuzzers    map[string]*ast.FuncDecl
	truncators map[string]*ast.FuncDecl
}

func (tr *tree) calls(dir string) calls {
	p := calls{
		mentions: map[string]map[string]bool{}, parsers: map[string]*ast.FuncDecl{},
		fuzzers: map[string]*ast.FuncDecl{}, truncators: map[string]*ast.FuncDecl{},
	}
	for _, f := range tr.files {
		if f.dir != dir || f.generated {
			continue
		}
		for _, decl := range f.syntax.Decls {
			switch d := decl.(type) {
			case *ast.FuncDecl:
				if d.Body != nil {
					p.add(d, f.test)
				}
			case *ast.GenDecl:
				p.addVariables(d)
			}
		}
	}
	return p
}

func (p calls) add(d *ast.FuncDecl, test bool) {
	name := d.Name.Name
	p.mention(name, d.Body)
	switch {
	case test && strings.HasPrefix(name, "Fuzz"):
		p.fuzzers[name] = d
	case test && strings.HasPrefix(name, "Test") && strings.Contains(name, "Trunc"):
		p.truncators[name] = d
	case !test && isParser(d):
		p.parsers[name] = d
	}
}

func (p calls) addVariables(d *ast.GenDecl) {
	for _, spec := range d.Specs {
		v, ok := spec.(*ast.ValueSpec)
		if !ok {
			continue
		}
		for _, name := range v.Names {
			for _, value := range v.Values {
				p.mention(name.Name, value)
			}
		}
	}
}

// mention notes every name in n.
func (p calls) mention(name string, n ast.Node) {
	name = fold(name)
	if p.mentions[name] == nil {
		p.mentions[name] = map[string]bool{}
	}
	ast.Inspect(n, func(n ast.Node) bool {
		if id, ok := n.(*ast.Ident); ok {
			p.mentions[name][fold(id.Name)] = true
		}
		return true
	})
}

func isParser(d *ast.FuncDecl) bool {
	name := strings.ToLower(d.Name.Name)
	return slices.ContainsFunc(parserPrefixes, func(prefix string) bool { return strings.HasPrefix(name, prefix) }) &&
		(takes(d, "[]byte") || takes(d, "string"))
}

// takes tells whether a parameter has the type, which is []byte or a name.
func takes(d *ast.FuncDecl, kind string) bool {
	return slices.ContainsFunc(d.Type.Params.List, func(f *ast.Field) bool {
		t := f.Type
		if list, ok := t.(*ast.ArrayType); ok && list.Len == nil {
			id, ok := list.Elt.(*ast.Ident)
			return ok && "[]"+id.Name == kind
		}
		id, ok := t.(*ast.Ident)
		return ok && id.Name == kind
	})
}

// reachable is what the functions may call, themselves included.
func (p calls) reachable(from map[string]*ast.FuncDecl) map[string]bool {
	seen := map[string]bool{}
	var todo []string
	for name := range from {
		todo = append(todo, fold(name))
	}
	for len(todo) > 0 {
		name := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		if seen[name] {
			continue
		}
		seen[name] = true
		todo = slices.AppendSeq(todo, maps.Keys(p.mentions[name]))
	}
	return seen
}

func (tr *tree) corpus(dir, fuzz string) bool {
	for name := range tr.texts {
		if strings.HasPrefix(name, dir+"/testdata/fuzz/"+fuzz+"/") {
			return true
		}
	}
	return false
}
