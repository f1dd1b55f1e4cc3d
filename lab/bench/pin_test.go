package bench

import (
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/lab/apps"
	"github.com/smcgw/smcgw/lab/bench/programs"
)

func TestChoosePins(t *testing.T) {
	for _, tt := range []struct {
		allowed        []int
		cores          map[int]string
		client, server int
	}{
		{[]int{0, 1}, map[int]string{0: "0", 1: "1"}, 0, 1},
		{[]int{0, 1, 2, 3}, map[int]string{0: "0-1", 1: "0-1", 2: "2-3", 3: "2-3"}, 0, 2},
		{[]int{2, 6, 3}, map[int]string{2: "2,6", 6: "2,6", 3: "3,7"}, 2, 3},
		{[]int{4, 5}, map[int]string{4: "4-5", 5: "4-5"}, 4, 5}, // one core: its threads
		{[]int{3}, nil, 0, 0},
		{nil, nil, 0, 0},
	} {
		p := choosePins(tt.allowed, func(cpu int) string { return tt.cores[cpu] })
		require.Equal(t, pins{tt.client, tt.server, len(tt.allowed)}, p)
	}
}

// The program that is run has the processor, and what it starts inherits it.
func TestPinned(t *testing.T) {
	p := thesePins()
	if p.all < 1 {
		t.Fatal("no processor")
	}
	run := func(args ...string) (string, error) {
		cmd := exec.Command("/proc/self/exe", append([]string{programs.Pinned}, args...)...)
		cmd.Env = append(cmd.Environ(), apps.Variable+"=1")
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	out, err := run(strconv.Itoa(p.server), "sh", "-c", "exec grep Cpus_allowed_list /proc/self/status")
	require.NoError(t, err, out)
	require.Equal(t, strconv.Itoa(p.server), strings.Fields(out)[1])

	for _, wrong := range [][]string{{"x", "true"}, {strconv.Itoa(p.server), "no-such-program"}, {"1000", "true"}, {"0"}} {
		_, err := run(wrong...)
		require.Error(t, err, wrong)
	}
}
