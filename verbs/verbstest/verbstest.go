package verbstest

import (
	"testing"

	"github.com/smcgw/smcgw/verbs"
)

// Side is one of the two devices of a test.
type Side struct {
	Device verbs.Device
	PD     verbs.PD
	Driver verbs.Driver // of vector 0, driven by the suite
}

// Pair is two devices that reach each other. Attr returns what a queue pair of
// the side connects with: the address of the other side's queue pair dest, the
// timers. nil means verbs.ConnectAttr. Address handles are made of its AH.
type Pair struct {
	A, B Side
	Attr func(side *Side, dest uint32) verbs.QPAttr
}

// Run runs the suite. open is called for every test and cleans up by t.Cleanup.
func Run(t *testing.T, open func(t testing.TB) *Pair) {
	for _, g := range []struct {
		name  string
		tests []test
	}{
		{"Device", deviceTests},
		{"State", stateTests},
		{"Transition", transitionTests},
		{"Drain", drainTests},
		{"Write", writeTests},
		{"Send", sendTests},
		{"Read", readTests},
		{"Atomic", atomicTests},
		{"Invalidate", invalidateTests},
		{"Packet", packetTests},
		{"Mixed", mixedTests},
		{"RNR", rnrTests},
		{"Error", errorTests},
		{"Domain", domainTests},
		{"UC", ucTests},
		{"UD", udTests},
		{"AH", ahTests},
		{"GSI", gsiTests},
		{"SRQ", srqTests},
		{"SRQEvent", srqEventTests},
		{"CQ", cqTests},
		{"CQSize", cqSizeTests},
		{"Async", asyncTests},
		{"Limit", limitTests},
		{"Mapper", mapperTests},
		{"Loop", loopTests},
	} {
		t.Run(g.name, func(t *testing.T) {
			for _, c := range g.tests {
				t.Run(c.name, func(t *testing.T) { c.run(newEnv(t, open(t))) })
			}
		})
	}
}

type test struct {
	name string
	run  func(e *env)
}
