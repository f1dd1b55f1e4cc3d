package soft

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/smcgw/smcgw/verbs"
)

// wrong is a work request that the peer has to refuse, and how.
type wrong struct {
	name   string
	status verbs.WCStatus // at the requester
	recv   verbs.WCStatus // of the receive it takes, success: it takes none
	make   func(e *modelEnd, wr *verbs.SendWR)
}

var wrongs = []wrong{
	{"WRITE with a bad key", verbs.WCRemAccessErr, verbs.WCSuccess, func(e *modelEnd, wr *verbs.SendWR) {
		wr.Opcode, wr.RemoteAddr, wr.RKey = verbs.WRRDMAWrite, e.peer.target.addr(0), e.peer.target.RKey()^1
	}},
	{"WRITE beyond the region", verbs.WCRemAccessErr, verbs.WCSuccess, func(e *modelEnd, wr *verbs.SendWR) {
		p := e.peer.target
		wr.Opcode, wr.RemoteAddr, wr.RKey = verbs.WRRDMAWrite, p.Addr()+uint64(len(p.Bytes()))-uint64(wr.SGList[0].Length)+1, p.RKey()
	}},
	{"WRITE to what cannot be written", verbs.WCRemAccessErr, verbs.WCSuccess, func(e *modelEnd, wr *verbs.SendWR) {
		wr.Opcode, wr.RemoteAddr, wr.RKey = verbs.WRRDMAWrite, e.peer.src.addr(0), e.peer.src.RKey()
	}},
	{"READ of what cannot be read", verbs.WCRemAccessErr, verbs.WCSuccess, func(e *modelEnd, wr *verbs.SendWR) {
		wr.Opcode, wr.RemoteAddr, wr.RKey = verbs.WRRDMARead, e.peer.src.addr(0), e.peer.src.RKey()
		wr.SGList = []verbs.SGE{e.reads.sge(0, 100)}
	}},
	{"atomic across words", verbs.WCRemInvReqErr, verbs.WCSuccess, func(e *modelEnd, wr *verbs.SendWR) {
		wr.Opcode, wr.RemoteAddr, wr.RKey = verbs.WRAtomicFetchAndAdd, e.peer.target.addr(4), e.peer.target.RKey()
		wr.SGList = []verbs.SGE{e.reads.sge(0, 8)}
	}},
	{"SEND that is too long", verbs.WCRemInvReqErr, verbs.WCLocLenErr, func(e *modelEnd, wr *verbs.SendWR) {
		wr.SGList = []verbs.SGE{e.src.sge(0, e.msg+1)}
	}},
	{"invalidation of what is not to be", verbs.WCRemAccessErr, verbs.WCRemInvReqErr, func(e *modelEnd, wr *verbs.SendWR) {
		wr.Opcode, wr.InvRKey = verbs.WRSendWithInv, e.peer.target.RKey()
	}},
	{"local key", verbs.WCLocProtErr, verbs.WCSuccess, func(_ *modelEnd, wr *verbs.SendWR) { wr.SGList[0].LKey ^= 1 }},
}

// What was posted before a request that is refused is done, exactly once; the
// request fails with the right status, and what was posted after it never
// happens, whatever the network does. Only the refusal itself may get lost, or
// overtake the answer to an earlier READ: then the peer is silent.
func TestModelRefused(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := drawConfig(t)
		c.pauses = nil
		m := newModel(t, c)
		e := m.connect([2]int{})
		x := rapid.SampledFrom(wrongs).Draw(t, "wrong")
		for range rapid.IntRange(0, 10).Draw(t, "work before") {
			e[0].todo = append(e[0].todo, drawOp(t, c.mtu.Bytes(), modelOpcodes))
		}
		m.w.must(time.Minute, "posts", func() bool { return len(e[0].todo) == 0 && len(e[0].sq) < c.cap.MaxSendWR })
		e[0].id++
		wr := verbs.SendWR{WRID: e[0].id, Opcode: verbs.WRSend, SGList: []verbs.SGE{e[0].src.sge(0, 100)}}
		x.make(e[0], &wr)
		require.NoError(t, e[0].qp.PostSend(&wr))
		e[0].sq = append(e[0].sq, &modelSend{id: e[0].id, op: wr.Opcode})
		e[0].broken = &modelBreak{why: x.status, orSilent: c.faults[1].loss+c.faults[1].corrupt+c.faults[1].reorder > 0}
		e[1].broken = &modelBreak{why: verbs.WCRetryExcErr, recv: x.recv, failed: x.recv == verbs.WCSuccess}
		for i := 0; i < 3 && len(e[0].sq) < c.cap.MaxSendWR; i++ {
			// Nothing of this is applied to the model: it must not happen.
			e[0].id++
			wr := verbs.SendWR{WRID: e[0].id, Opcode: verbs.WRRDMAWrite, SGList: []verbs.SGE{e[0].src.sge(0, 100)}}
			wr.RemoteAddr, wr.RKey = e[0].peer.target.addr(50*i), e[0].peer.target.RKey()
			require.NoError(t, e[0].qp.PostSend(&wr))
			e[0].sq = append(e[0].sq, &modelSend{id: e[0].id, op: wr.Opcode})
		}
		m.w.must(time.Minute, "the failure", func() bool { return len(e[0].sq) == 0 })
		m.w.run(time.Second, nil)
		require.Empty(t, e[1].expect, "messages from before the refusal")
		require.Equal(t, verbs.QPSErr, e[0].qp.State())
		if x.status != verbs.WCLocProtErr {
			require.Equal(t, verbs.QPSErr, e[1].qp.State(), "of who refused")
			require.Empty(t, e[1].recvs.posted, "receives that were not flushed")
		}
		requireSame(t, e[1].target.want, e[1].target.bytes(), "the target")
		e[1].target.checkFrame(t)
		e[0].reads.checkFrame(t)
	})
}

// After an outage that is shorter than the peer's patience the work goes on,
// not long after the network does.
func TestModelOutage(t *testing.T) {
	for _, long := range []time.Duration{5 * time.Millisecond, 50 * time.Millisecond, 500 * time.Millisecond, 5 * time.Second} {
		c := plainConfig()
		c.timeout = 18 // 1.07 s
		m := newModel(t, c)
		e := m.connect([2]int{})
		for _, e := range e {
			for i := range 400 {
				e.todo = append(e.todo, modelOp{op: modelOpcodes[i%9], n: 4096, sges: 1, remote: i, gap: 5 * time.Microsecond})
			}
		}
		m.w.run(500*time.Microsecond, nil)
		require.False(t, m.idle(), "there must be work left")
		m.w.net.both(m.nodes[0].addr, m.nodes[1].addr, func(r *simRoute) { r.loss = 1 })
		m.w.run(long, nil)
		m.w.net.both(m.nodes[0].addr, m.nodes[1].addr, func(r *simRoute) { r.loss = 0 })
		before := e[0].finished
		start := m.w.net.now
		m.w.must(time.Minute, "progress", func() bool { return e[0].finished > before })
		t.Logf("outage of %v: progress %v after it", long, m.w.net.now-start)
		require.LessOrEqual(t, m.w.net.now-start, min(2*long, 2*time.Second)+20*time.Millisecond)
		m.finish(10 * time.Second)
	}
}

// Packets of a connection that is gone mean nothing to the next one between the
// same devices, which has the same first PSNs.
func TestModelReconnect(t *testing.T) {
	c := plainConfig()
	c.faults[0] = simFaults{duplicate: 0.5, reorder: 0.5, late: 5 * time.Millisecond}
	c.faults[1] = c.faults[0]
	m := newModel(t, c)
	for round := range 20 {
		e := m.connect([2]int{})
		for _, e := range e {
			for i := range 10 {
				e.todo = append(e.todo, modelOp{op: modelOpcodes[(round+i)%7], n: 500 * (i + 1), sges: 1, remote: 100 * i, local: 77 * round})
			}
		}
		m.w.must(time.Minute, "all work", m.idle)
		for _, e := range e {
			e.check()
			require.NoError(t, e.qp.Close())
			e.gone = true
		}
		m.ends = nil
	}
	m.w.run(time.Second, nil)
	require.Positive(t, m.nodes[0].dev.Stats().DropNoQP, "nothing came late")
}
