package arch

import (
	"fmt"
	"go/ast"
	"maps"
	"slices"
)

// The vocabulary of the project: what users see and what goes over the wire.
// A name or number that changes here breaks peers, dashboards and scripts.

// words of the gateway's types; the type of the states has other constants,
// its names are in a table.
var words = map[string][]string{
	"Mode":       {"off", "observe", "enforce"},
	"Action":     {"pass", "accelerate", "auto"},
	"Carrier":    {"rdma-shm", "rdma-soft", "rdma-hw", "rdma-ib", "relay"},
	"DeviceKind": {"shm", "soft", "hw", "ib"},
	"Side":       {"client", "server"},
	"phaseNames": {
		"offered", "accepted", "negotiating", "completing", "carrying", "closing", "closed", "native", "released",
		"aborted", "dead",
	},
}

// vocabulary compares the words with the constants of the gateway's types,
// once there is a gateway.
func vocabulary(tr *tree) (problems []string) {
	if !slices.Contains(tr.packages(), "gateway") {
		return nil
	}
	found := map[string][]string{}
	for _, f := range tr.files {
		if under(f.dir, "gateway") && !f.test {
			collectWords(f.syntax, found)
		}
	}
	for _, kind := range slices.Sorted(maps.Keys(words)) {
		want, got := slices.Sorted(slices.Values(words[kind])), slices.Sorted(slices.Values(found[kind]))
		if !slices.Equal(want, got) {
			problems = append(problems, fmt.Sprintf("gateway: the names of %s are %q, not %q", kind, got, want))
		}
	}
	return problems
}

// collectWords gathers the values of typed string constants by their type, and
// of the table of states.
func collectWords(f *ast.File, into map[string][]string) {
	ast.Inspect(f, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok {
			return true
		}
		if kind, ok := spec.Type.(*ast.Ident); ok {
			for _, v := range spec.Values {
				if word, ok := literal(v); ok && word != "" {
					into[kind.Name] = append(into[kind.Name], word)
				}
			}
		}
		if len(spec.Names) == 1 && len(spec.Values) == 1 && spec.Names[0].Name == "phaseNames" {
			if table, ok := spec.Values[0].(*ast.CompositeLit); ok {
				into["phaseNames"] = append(into["phaseNames"], elements(table)...)
			}
		}
		return true
	})
}

func elements(table *ast.CompositeLit) (list []string) {
	for _, e := range table.Elts {
		if kv, ok := e.(*ast.KeyValueExpr); ok {
			e = kv.Value
		}
		if word, ok := literal(e); ok {
			list = append(list, word)
		}
	}
	return list
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
