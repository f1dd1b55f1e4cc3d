package verbstest

import (
	"testing"
	"time"

	"github.com/smcgw/smcgw/verbs"
)

// Side is one of the two devices of a test.
type Side struct {
	Device verbs.Device
	PD     verbs.PD
	Driver verbs.Driver // of vector 0, driven by the suite
}

// Pair is two devices that reach each other.
type Pair struct {
	A, B Side
	// Attr returns the attributes with which a queue pair of the side is connected: the address of the other side's queue
	// pair dest, and the timers. nil means verbs.ConnectAttr. Address handles are made from its AH.
	Attr func(side *Side, dest uint32) verbs.QPAttr
	// Deviates lists the rules ("Group/Rule") that the device is known to break, and how. Such a rule must fail: if it
	// passes, it is no longer a deviation, and the test fails. Mixed work leaves out what FenceRepeated would break.
	Deviates map[string]string
	// Patience bounds the wait for what must happen. Default 30 seconds.
	Patience time.Duration
}

// Deaf is the poller of a loop that never sleeps.
type Deaf struct{}

// Add implements verbs.Poller.
func (Deaf) Add(int) error { return nil }

// Remove implements verbs.Poller.
func (Deaf) Remove(int) error { return nil }

// FenceRepeated is the rule that a fenced message may be repeated whatever follows it, and that what follows gets its
// result. In mixed work a device that breaks it fails only sometimes, so mixed work then has no atomics, and no READ
// after a fence in flight.
const FenceRepeated = "RNR/FenceRepeated"

// badFence reports whether the device is known to break FenceRepeated.
func (p *Pair) badFence() bool { return p.Deviates[FenceRepeated] != "" }

// Run runs the suite. open is called for every test and must clean up by t.Cleanup.
func Run(t *testing.T, open func(t testing.TB) *Pair) {
	for _, g := range []struct {
		name  string
		tests []test
	}{
		{"Device", deviceTests},
		{"State", stateTests},
		{"Transition", transitionTests},
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
		{"CQ", cqTests},
		{"CQSize", cqSizeTests},
		{"Async", asyncTests},
		{"Limit", limitTests},
		{"Mapper", mapperTests},
		{"Loop", loopTests},
	} {
		t.Run(g.name, func(t *testing.T) {
			for _, c := range g.tests {
				t.Run(c.name, func(t *testing.T) {
					p := open(t)
					if how, ok := p.Deviates[g.name+"/"+c.name]; ok {
						breaks(t, p, c, how)
					} else {
						c.run(newEnv(t, p))
					}
				})
			}
		})
	}
}

type test struct {
	name string
	run  func(e *env)
}

// where makes tests run on devices that support what they test.
func where(can func(*env) bool, tests []test) []test {
	list := make([]test, len(tests))
	for i, c := range tests {
		list[i] = test{c.name, func(e *env) {
			if can(e) {
				c.run(e)
			}
		}}
	}
	return list
}

// over gives both ends queue pairs of a transport.
func over(typ verbs.QPType) func(*env) bool {
	return func(e *env) bool { return e.use(typ) }
}
