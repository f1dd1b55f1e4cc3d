package profile

import (
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/lab/bench/paper"
)

func TestTally(t *testing.T) {
	var tally Tally
	require.Empty(t, tally.Parts())
	for _, s := range []struct {
		n     int
		of    Role
		stack []Frame
	}{
		{5, Client, stack("tcp_ack", "main")},
		{2, Server, stack("tcp_ack", "main")},
		{1, Server, stack("tcp_sendmsg", "main")},
		{1, Kernel, stack("pv_native_safe_halt")},
		{1, Others, stack("x")},
	} {
		for range s.n {
			tally.Add(&Sample{Command: "cmd", Stack: s.stack}, s.of)
		}
	}
	require.Equal(t, 10, tally.Samples())
	require.Equal(t, []paper.Part{
		{Item: "TCP", Share: 0.8, By: map[string]float64{"client": 0.5, "server": 0.3}, Functions: []string{"tcp_ack 70.0 %", "tcp_sendmsg 10.0 %"}},
		{Item: "idle", Share: 0.1, By: map[string]float64{"kernel": 0.1}, Functions: []string{"pv_native_safe_halt 10.0 %"}},
		{Item: "the rest of the machine", Share: 0.1, By: map[string]float64{"machine": 0.1}, Functions: []string{"cmd 10.0 %"}},
	}, tally.Parts())
}

func TestTallyNamesFewFunctions(t *testing.T) {
	var tally Tally
	for name := range strings.FieldsSeq("a b c d e f g") {
		tally.Add(&Sample{Stack: stack(name)}, Client)
	}
	require.Len(t, tally.Parts()[0].Functions, functionsShown)
	require.Equal(t, "a 14.3 %", tally.Parts()[0].Functions[0])
}

func TestRoleOf(t *testing.T) {
	known := map[int]Role{7: ServerGateway}
	require.Equal(t, ServerGateway, RoleOf(&Sample{PID: 7}, known))
	require.Equal(t, Others, RoleOf(&Sample{PID: 8}, known))
	require.Equal(t, Kernel, RoleOf(&Sample{}, known))
	require.Equal(t, Kernel, RoleOf(&Sample{PID: 8, Stack: stack("x", thread, "ret_from_fork")}, nil))
}

func TestFolded(t *testing.T) {
	f := Folded{}
	for range 2 {
		f.Add(&Sample{Command: "a b", Stack: stack("in", "o;ut")}, Client)
	}
	f.Add(&Sample{Command: "c"}, Others)
	var b strings.Builder
	require.NoError(t, f.Write(&b))
	require.Equal(t, "client;a b;o:ut;in 2\nmachine;c 1\n", b.String())
	require.ErrorIs(t, f.Write(full{}), errFull)
}

type full struct{}

var errFull = errors.New("disk full")

func (full) Write([]byte) (int, error) { return 0, errFull }
