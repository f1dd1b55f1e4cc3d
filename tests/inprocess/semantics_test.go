package inprocess

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/inprocess/broker"
	"github.com/smcgw/smcgw/lab/matrix"
	"github.com/smcgw/smcgw/tests/inprocess/world"
)

const caseTime = 60 * time.Second

// TestCallsDoWhatTheyDoNatively compares what a program sees with the library and natively, case by case. The program
// begins a case only once its connections are promoted: the kernel no longer counts their bytes.
func TestCallsDoWhatTheyDoNatively(t *testing.T) {
	program := shared.For(t).Program("semantics")
	list, err := run(nil, caseTime, nil, program, "list")
	require.NoError(t, err, list)
	worlds := map[string]broker.Thresholds{"4": {Calls: 1}}
	if matrix.Whole() {
		worlds["6"], worlds["m"] = broker.Thresholds{Calls: 1}, broker.Thresholds{Calls: 1, Spin: 20 * time.Microsecond}
	}
	for family, th := range worlds {
		w := newWorld(t, th)
		t.Run(family, func(t *testing.T) {
			for name := range strings.FieldsSeq(list) {
				t.Run(name, func(t *testing.T) {
					t.Parallel()
					compare(t, w, program, program, family, name)
				})
			}
		})
		require.Eventually(t, func() bool { return w.Moved() > 0 }, 30*time.Second, 10*time.Millisecond, "rings have moved bytes")
	}
}

// compare runs a case by program in w and by native without the library, and compares what they print.
func compare(t *testing.T, w *world.World, program, native, family, name string) {
	t.Helper()
	env := []string{"SEMANTICS_PROMOTED=1"}
	if name == "few" {
		env = nil // it makes its own connection, with few descriptors
	}
	got, err := run(w, caseTime, env, program, family, name)
	require.NoError(t, err, got)
	want := ""
	for range 4 { // where the kernel's answer depends on how busy the machine is, any of its answers is right
		want, err = run(nil, caseTime, nil, native, family, name)
		if err == nil && want == got {
			return
		}
	}
	require.NoError(t, err, want)
	require.Equal(t, want, got)
}
