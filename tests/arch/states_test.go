package arch

import (
	"flag"
	"fmt"
	"go/ast"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/internal/golden"
)

var update = flag.Bool("update", false, "rewrite the generated documents")

// TestReference: docs/reference/states.md is the gateway's tables of states and ends.
func TestReference(t *testing.T) {
	tr := load(t, "../..")
	moves, ends := tr.table("stateMoves"), tr.table("endings")
	require.NotEmpty(t, moves)
	require.NotEmpty(t, ends)
	var b strings.Builder
	b.WriteString("# States\n\nGenerated from `stateMoves` and `endings` of `gateway` by `make docs`. docs/ARCHITECTURE.md \"Names\" lists the states.\n" +
		"`offered` and `native` are known to the programs only: a connection that stays native never becomes a flow.\n\n" +
		"| a flow in | goes on to |\n|---|---|\n")
	for _, row := range moves {
		to, _ := row.Elts[1].(*ast.CompositeLit)
		fmt.Fprintf(&b, "| %s | %s |\n", state(row.Elts[0]), strings.Join(each(to.Elts, state), ", "))
	}
	b.WriteString("\nA flow in any state that is not final ends in one of these ways:\n\n| way | state | app leg | wire leg | entry |\n|---|---|---|---|---|\n")
	for _, row := range ends {
		name, ok := literal(field(row, "name"))
		require.True(t, ok)
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %s |\n", name, state(field(row, "state")),
			does(row, "app", "appClean"), does(row, "wire", "wireReset"), does(row, "entry", "entryKept"))
	}
	require.NotContains(t, b.String(), "UNKNOWN")
	golden.Page(t, "docs/reference/states.md", b.String(), *update)
}

// endWords say what teardown does with a part of a flow, by the constants of the code.
var endWords = map[string]string{
	"appClean": "ends as planned", "appReset": "reset", "appDrained": "reset, behind what has arrived",
	"wireReset": "reset", "wireForget": "no packet may leave", "wireClose": "what was written is delivered, then FIN",
	"entryKept": "kept", "entryDead": "`dead`", "entryRelease": "`released`: the SYN without option goes out",
}

// does says what happens to a part; zero is the constant that is not written. An end
// that begins anew has its entry dead from the beginning.
func does(row *ast.CompositeLit, part, zero string) string {
	value := zero
	if id, ok := field(row, part).(*ast.Ident); ok {
		value = id.Name
	}
	if id, ok := field(row, "anew").(*ast.Ident); ok && id.Name == "true" && part == "entry" {
		value = "entryDead"
	}
	words, ok := endWords[value]
	if !ok {
		return "UNKNOWN " + value
	}
	return words
}

// state is the name of a state by its constant.
func state(e ast.Expr) string {
	id, ok := e.(*ast.Ident)
	if !ok {
		return "UNKNOWN"
	}
	return "`" + strings.ToLower(strings.TrimPrefix(id.Name, "State")) + "`"
}

func each(list []ast.Expr, text func(ast.Expr) string) (out []string) {
	for _, e := range list {
		out = append(out, text(e))
	}
	return out
}

// table finds the rows of a variable of the gateway that is a table.
func (tr *tree) table(name string) (rows []*ast.CompositeLit) {
	for _, f := range tr.files {
		if !under(f.dir, "gateway") || f.test {
			continue
		}
		ast.Inspect(f.syntax, func(n ast.Node) bool {
			spec, ok := n.(*ast.ValueSpec)
			if !ok || len(spec.Names) != 1 || spec.Names[0].Name != name || len(spec.Values) != 1 {
				return true
			}
			table, ok := spec.Values[0].(*ast.CompositeLit)
			if !ok {
				return false
			}
			for _, e := range table.Elts {
				if kv, ok := e.(*ast.KeyValueExpr); ok {
					e = kv.Value
				}
				if row, ok := e.(*ast.CompositeLit); ok {
					rows = append(rows, row)
				}
			}
			return false
		})
	}
	return rows
}

// field is a field of a row by its name; nil if it has none.
func field(row *ast.CompositeLit, name string) ast.Expr {
	i := slices.IndexFunc(row.Elts, func(e ast.Expr) bool {
		kv, ok := e.(*ast.KeyValueExpr)
		if !ok {
			return false
		}
		id, ok := kv.Key.(*ast.Ident)
		return ok && id.Name == name
	})
	if i < 0 {
		return nil
	}
	kv, _ := row.Elts[i].(*ast.KeyValueExpr)
	return kv.Value
}
