package ebpf

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/cilium/ebpf/btf"
	"github.com/stretchr/testify/require"
)

// The states of the table: those of [State], and that of a proof of legs.
var tableStates = append(append([]string(nil), stateNames[:]...), "proof")

// lives are the values of enum liveness after ANY.
var lives = []string{"alive", "late", "gone"}

const tableWidth = 16 // STATES of verdict.h

// verdictTable is the table of verdict.h, as it is in the object.
type verdictTable struct {
	classes, verdicts []string
	cells             []uint8
}

// enumNames are the names of an enum of the object by value.
func enumNames(t *testing.T, types *btf.Spec, name string) (names []string) {
	t.Helper()
	var e *btf.Enum
	require.NoError(t, types.TypeByName(name, &e))
	for i, v := range e.Values {
		require.EqualValues(t, i, v.Value, v.Name)
		names = append(names, v.Name)
	}
	return names
}

func loadTable(t *testing.T) *verdictTable {
	t.Helper()
	spec, err := loadSmcgw()
	require.NoError(t, err)
	v := &verdictTable{classes: enumNames(t, spec.Types, "packet_class"), verdicts: enumNames(t, spec.Types, "packet_verdict")}
	v.classes = v.classes[:len(v.classes)-1] // CLASSES
	v.cells = make([]uint8, len(v.classes)*(1+len(lives))*tableWidth)
	require.NoError(t, spec.Variables["smcgw_verdicts"].Get(v.cells))
	return v
}

// at is one cell; live is 0 for ANY.
func (v *verdictTable) at(class, live, state int) string {
	return v.verdicts[v.cells[(class*(1+len(lives))+live)*tableWidth+state]]
}

// of is what is decided, by the liveness where that counts.
func (v *verdictTable) of(class, live, state int) string {
	if always := v.at(class, 0, state); always != "LOOK" {
		return always
	}
	return v.at(class, 1+live, state)
}

// Every cell says something, and by the liveness only where a line asks for it.
func TestVerdictTable(t *testing.T) {
	v := loadTable(t)
	for c, class := range v.classes {
		for s, state := range tableStates {
			for l, live := range lives {
				name := fmt.Sprintf("%s %s %s", class, state, live)
				require.NotEqual(t, "LOOK", v.of(c, l, s), name)
				if v.at(c, 0, s) != "LOOK" {
					require.Equal(t, "LOOK", v.at(c, 1+l, s), name)
				}
			}
		}
	}
}

// described finds what verdict.h says of the names of an enum, and the headings
// between them.
func described(header, enum string) (lines []string) {
	_, text, _ := strings.Cut(header, "enum "+enum+" {\n")
	text, _, _ = strings.Cut(text, "\n};")
	name := regexp.MustCompile(`^\t([A-Z_]+),\s*(?:/\* (.*) \*/)?$`)
	heading := regexp.MustCompile(`^\t/\* (.*) \*/$`)
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		if m := heading.FindStringSubmatch(line); m != nil {
			lines = append(lines, "# "+m[1])
		} else if m := name.FindStringSubmatch(line); m != nil && m[1] != "CLASSES" && m[1] != "LOOK" {
			lines = append(lines, m[1]+" "+m[2])
		}
	}
	return lines
}

// document writes the table as docs/design/verdicts.md has it.
func (v *verdictTable) document(header string) string {
	var b strings.Builder
	b.WriteString(documentHead)
	index := map[string]int{}
	for i, c := range v.classes {
		index[c] = i
	}
	for _, line := range described(header, "packet_class") {
		if title, ok := strings.CutPrefix(line, "# "); ok {
			fmt.Fprintf(&b, "\n## %s\n\n| packet | %s |\n|---|%s\n", strings.TrimSuffix(title, "."), strings.Join(tableStates, " | "), strings.Repeat("---|", len(tableStates)))
			continue
		}
		class, text, _ := strings.Cut(line, " ")
		fmt.Fprintf(&b, "| `%s`", class)
		if text != "" {
			fmt.Fprintf(&b, " %s", text)
		}
		for s := range tableStates {
			fmt.Fprintf(&b, " | %s", v.cell(index[class], s))
		}
		b.WriteString(" |\n")
	}
	b.WriteString("\n## Verdicts\n\n| verdict | the packet; the entry |\n|---|---|\n")
	for _, line := range described(header, "packet_verdict") {
		if name, text, _ := strings.Cut(line, " "); name != "#" && text != "" {
			fmt.Fprintf(&b, "| %s | %s |\n", spoken(name), text)
		}
	}
	return b.String()
}

const documentHead = `# Verdicts

What the programs do with a packet of a tuple, by its class, the state of the tuple's entry, and the liveness of the gateway: *alive*
while its heartbeat is younger than 200 ms, *late* until 12 s, then *gone*. A cell with one verdict does not look at the
liveness; one with three is alive / late / gone. This page is made from ` + "`ebpf/bpf/verdict.h`" + `, and a test sends every class in every state
and liveness through the programs (` + "`ebpf/verdict_test.go`" + `).

Two flags of an entry come before the table: of one that was released for good nothing of netstack's leaves any more, and
refusals count twice only behind a refused offer. Released and dead entries decide for five seconds.
`

// spoken is how a verdict reads.
func spoken(name string) string { return strings.ToLower(strings.ReplaceAll(name, "_", " ")) }

// cell shows one cell.
func (v *verdictTable) cell(class, state int) string {
	drop := func(s string) string {
		if strings.HasPrefix(s, "DROP") {
			return "drop"
		}
		return spoken(s)
	}
	if always := v.at(class, 0, state); always != "LOOK" {
		return drop(always)
	}
	return drop(v.of(class, 0, state)) + " / " + drop(v.of(class, 1, state)) + " / " + drop(v.of(class, 2, state))
}

// The page is what the programs have. SMCGW_UPDATE=1 writes it.
func TestVerdictDocument(t *testing.T) {
	header, err := os.ReadFile("bpf/verdict.h")
	require.NoError(t, err)
	compareFile(t, "../docs/design/verdicts.md", loadTable(t).document(string(header)))
}

// compareFile wants a file to have a text, or writes it where that is asked for.
func compareFile(t *testing.T, name, text string) {
	t.Helper()
	if os.Getenv("SMCGW_UPDATE") != "" {
		require.NoError(t, os.WriteFile(name, []byte(text), 0o644))
		return
	}
	have, err := os.ReadFile(name)
	require.NoError(t, err)
	require.Equal(t, string(have), text, "SMCGW_UPDATE=1 go test -run Verdict ./ebpf writes %s", name)
}
