package arch

import (
	"flag"
	"fmt"
	"go/ast"
	"slices"
	"strings"
	"testing"
	"unicode"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/internal/golden"
)

var update = flag.Bool("update", false, "rewrite the generated documents")

// TestReference: docs/reference/states.md is the gateway's table of transitions.
func TestReference(t *testing.T) {
	tr := load(t, "../..")
	rows := tr.table("transitions")
	require.NotEmpty(t, rows)
	var b strings.Builder
	b.WriteString("# States\n\nGenerated from `transitions` of `gateway/internal/flow` by `make docs`. docs/ARCHITECTURE.md \"Names\" lists the states.\n" +
		"`offered` and `native` are known to the programs only: a connection that stays native never becomes a flow.\n" +
		"*handshake* is `accepted`, `negotiating` and `completing`; *carried* is `carrying` and `closing`; *any* is each of them.\n\n" +
		"| event | in | leads to |\n|---|---|---|\n")
	ends := "\nWhat ends a flow, and what becomes of its parts:\n\n| event | in | state | app leg | wire leg | entry |\n|---|---|---|---|---|---|\n"
	for _, row := range rows {
		line := fmt.Sprintf("| `%s` | %s | %s |", event(field(row, "On")), phases(field(row, "From")), state(field(row, "To")))
		ending, ok := field(row, "Ending").(*ast.UnaryExpr)
		if !ok {
			b.WriteString(line + "\n")
			continue
		}
		parts, ok := ending.X.(*ast.CompositeLit)
		require.True(t, ok)
		ends += line + fmt.Sprintf(" %s | %s | %s |\n", does(parts, "App", "AppClean"), does(parts, "Wire", "WireReset"), does(parts, "Entry", "EntryKept"))
	}
	b.WriteString(ends)
	require.NotContains(t, b.String(), "UNKNOWN")
	golden.Page(t, "docs/reference/states.md", b.String(), *update)
}

// endWords say what the end does with a part of a flow, by the constants of the code.
var endWords = map[string]string{
	"AppClean": "ends as planned", "AppReset": "reset", "AppDrained": "reset, behind what has arrived",
	"WireReset": "reset", "WireForget": "no packet may leave", "WireClose": "what was written is delivered, then FIN",
	"EntryKept": "kept", "EntryDead": "`dead`", "EntryRelease": "`released`: the SYN without option goes out",
}

// does says what happens to a part; zero is the constant that is not written. An end
// that begins anew has its entry dead from the beginning.
func does(row *ast.CompositeLit, part, zero string) string {
	value := zero
	if id, ok := field(row, part).(*ast.Ident); ok {
		value = id.Name
	}
	if id, ok := field(row, "Anew").(*ast.Ident); ok && id.Name == "true" && part == "Entry" {
		value = "EntryDead"
	}
	words, ok := endWords[value]
	if !ok {
		return "UNKNOWN " + value
	}
	return words
}

// event is the name of an event by its constant: RefusesMute is "refuses mute".
func event(e ast.Expr) string {
	id, ok := e.(*ast.Ident)
	if !ok {
		return "UNKNOWN"
	}
	var b strings.Builder
	for i, r := range id.Name {
		if i > 0 && unicode.IsUpper(r) {
			b.WriteByte(' ')
		}
		b.WriteRune(unicode.ToLower(r))
	}
	return b.String()
}

// phases are the states of a set: one of the common sets, or those that are named.
func phases(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.Ident:
		return map[string]string{"anyPhase": "any", "handshakes": "handshake", "carried": "carried"}[e.Name]
	case *ast.CallExpr:
		return strings.Join(each(e.Args, state), ", ")
	default:
		return "UNKNOWN"
	}
}

// state is the name of a state by its constant.
func state(e ast.Expr) string {
	id, ok := e.(*ast.Ident)
	if !ok {
		return "UNKNOWN"
	}
	return "`" + strings.ToLower(id.Name) + "`"
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
