package ebpf

import (
	"fmt"
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
