package soft

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/smcgw/smcgw/verbs"
)

// Reliable connections do what their reference does, whatever the network does.
func TestModelRC(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := newModel(t, drawConfig(t))
		m.runDrawn(t)
	})
}

// Bit flips that no UDP checksum shows stop at the ICRC.
func TestModelICRC(t *testing.T) {
	var stopped uint64
	rapid.Check(t, func(t *rapid.T) {
		c := drawConfig(t)
		c.v6 = true // see simFaults.unchecked
		for i := range c.faults {
			c.faults[i].unchecked = 1
			c.faults[i].corrupt = 0.03
		}
		m := newModel(t, c)
		m.runDrawn(t)
		for _, n := range m.nodes {
			stopped += n.dev.Stats().DropICRC
		}
	})
	require.Positive(t, stopped)
}

// runDrawn draws connections and work in both directions and does it.
func (m *model) runDrawn(t *rapid.T) {
	mtu := m.cfg.mtu.Bytes()
	if m.cfg.vectors > 1 && rapid.Bool().Draw(t, "strays") {
		m.w.net.scatter = 0.2
	}
	for _, n := range m.nodes {
		n.slack = time.Duration(rapid.SampledFrom([]int{0, 100, 1000}).Draw(t, "slack")) * time.Microsecond
	}
	for range rapid.IntRange(1, 3).Draw(t, "connections") {
		var vector [2]int
		for i := range vector {
			vector[i] = rapid.IntRange(0, m.cfg.vectors-1).Draw(t, "vector")
		}
		for _, e := range m.connect(vector) {
			for range rapid.IntRange(0, 25).Draw(t, "work") {
				e.todo = append(e.todo, drawOp(t, mtu, modelOpcodes))
			}
		}
	}
	m.finish(time.Minute)
}

// A schedule of faults is the same for the same seed, work included.
func TestModelRepeats(t *testing.T) {
	faults := simFaults{loss: 0.05, duplicate: 0.1, reorder: 0.1, late: 200 * time.Microsecond, corrupt: 0.05}
	run := func() (simStats, time.Duration) {
		m := newModel(t, modelConfig{
			seed: 7, vectors: 1, mtu: verbs.MTU1024, cap: verbs.QPCap{MaxSendWR: 8, MaxRecvWR: 8, MaxSendSGE: 2, MaxRecvSGE: 2},
			all: true, recvs: 8, rdAtomic: 2, rnrTimer: 5, timeout: 11,
			faults: [2]simFaults{faults, faults},
		})
		e := m.connect([2]int{})
		for i := range 50 {
			e[i%2].todo = append(e[i%2].todo, modelOp{op: modelOpcodes[i%len(modelOpcodes)], n: 100 * i, sges: 1})
			if op := &e[i%2].todo[i/2]; op.op == verbs.WRAtomicCmpAndSwp || op.op == verbs.WRAtomicFetchAndAdd {
				op.n = 8
			}
		}
		m.w.must(time.Minute, "all work", m.idle)
		stats, now := m.w.net.stats, m.w.net.now
		m.w.run(time.Second, nil)
		return stats, now
	}
	s1, t1 := run()
	s2, t2 := run()
	if s1 != s2 || t1 != t2 {
		t.Fatalf("%+v at %v, then %+v at %v", s1, t1, s2, t2)
	}
	if s1.lost == 0 || s1.duplicated == 0 || s1.reordered == 0 || s1.badChecksum == 0 {
		t.Fatalf("no faults: %+v", s1)
	}
}
