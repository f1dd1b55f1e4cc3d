package soft

import (
	"math/rand/v2"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/verbs"
)

// modelConfig is what a run of the model is made of.
type modelConfig struct {
	seed     uint64
	v6       bool
	vectors  int
	mtu      verbs.MTU
	psn      [2]uint32 // first PSN of either direction
	cap      verbs.QPCap
	all      bool          // SQSigAll
	recvs    int           // posted
	lazy     time.Duration // see modelRecvs
	rdAtomic uint8
	rnrTimer uint8
	timeout  uint8
	faults   [2]simFaults
	oneCQ    bool // for sends and receives
	pauses   []modelPause
	loopback bool // one device, connected with itself
	// noTrains is when the kernel stops cutting trains; 0: never, 1: from the
	// beginning.
	noTrains time.Duration
	ecn      bool
}

// modelPause is a stretch of time in which a device's process does not run.
type modelPause struct {
	node  int
	after time.Duration
	long  time.Duration
}

// model is two devices and the connections between them.
type model struct {
	t     simTB
	w     *simWorld
	cfg   modelConfig
	rng   *rand.Rand
	nodes [2]*simNode
	pds   [2]verbs.PD
	ends  []*modelEnd
	byQPN [2]map[uint32]*modelEnd
}

const modelRemote = verbs.AccessLocalWrite | verbs.AccessRemoteWrite | verbs.AccessRemoteRead | verbs.AccessRemoteAtomic

var modelAddrs = map[bool][2]string{false: {"10.0.0.1", "10.0.0.2"}, true: {"fd00::1", "fd00::2"}}

func newModel(t simTB, cfg modelConfig) *model {
	if cfg.loopback { // one route, both ways
		cfg.faults[0] = cfg.faults[1]
	}
	m := &model{
		t: t, w: newSimWorld(t, cfg.seed), cfg: cfg, rng: rand.New(rand.NewPCG(cfg.seed, 1)),
	}
	for i, addr := range modelAddrs[cfg.v6] {
		if m.nodes[i] = m.nodes[0]; i == 0 || !cfg.loopback {
			m.nodes[i] = m.w.open(addr, func(c *Config) {
				c.Vectors, c.ECN, c.NoOffload = cfg.vectors, cfg.ecn, cfg.noTrains == 1
			})
		}
		m.byQPN[i] = map[uint32]*modelEnd{}
		pd, err := m.nodes[i].dev.AllocPD()
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, pd.Close()) })
		m.pds[i] = pd
	}
	m.w.net.route(m.nodes[0].addr, m.nodes[1].addr).simFaults = cfg.faults[0]
	m.w.net.route(m.nodes[1].addr, m.nodes[0].addr).simFaults = cfg.faults[1]
	if cfg.noTrains > 1 {
		m.w.net.after(cfg.noTrains, m.w.net.stopTrains)
	}
	for _, p := range cfg.pauses {
		m.w.net.after(p.after, func() { m.nodes[p.node].paused = m.w.net.now + p.long })
	}
	return m
}

// cq makes a completion queue for the ends of a side.
func (m *model) cq(side int, l *simLoop) verbs.CQ {
	return m.pollCQ(side, l, func(wc *verbs.WC) { m.completion(side, wc) })
}

// pollCQ makes a completion queue that is polled in every turn of the loop.
func (m *model) pollCQ(side int, l *simLoop, f func(wc *verbs.WC)) verbs.CQ {
	cq, err := m.nodes[side].dev.CreateCQ(verbs.CQAttr{Depth: 256, Vector: l.vector})
	require.NoError(m.t, err)
	m.t.Cleanup(func() { require.NoError(m.t, cq.Close()) })
	wcs := make([]verbs.WC, 5)
	l.turn = append(l.turn, func() bool {
		n, err := cq.Poll(wcs)
		if err != nil { // in every turn, require would cost too much
			m.t.Fatalf("poll: %v", err)
		}
		for i := range wcs[:n] {
			f(&wcs[i])
		}
		return n > 0
	})
	return cq
}

func (m *model) completion(side int, wc *verbs.WC) {
	e := m.byQPN[side][wc.QPNum]
	require.NotNil(m.t, e, "completion of queue pair %#x", wc.QPNum)
	switch {
	case e.broken != nil && wc.Status != verbs.WCSuccess:
		e.fail(wc)
	case wc.WRID&modelRecvID != 0:
		e.receive(wc)
	default:
		e.complete(wc)
	}
}

// connect makes a connection between vectors of the two devices.
func (m *model) connect(vector [2]int) [2]*modelEnd {
	return m.connectWith(vector, func(int, *verbs.QPAttr) {})
}

// connectWith lets change alter the attributes of a side.
func (m *model) connectWith(vector [2]int, change func(side int, a *verbs.QPAttr)) [2]*modelEnd {
	var ends [2]*modelEnd
	for side := range ends {
		ends[side] = m.newEnd(side, m.nodes[side].loops[vector[side]])
	}
	ends[0].peer, ends[1].peer = ends[1], ends[0]
	for side, e := range ends {
		require.NoError(m.t, verbs.Init(e.qp, modelRemote))
		attr := m.attr(side)
		attr.DestQPNum = e.peer.qp.Num()
		change(side, &attr)
		require.NoError(m.t, verbs.Connect(e.qp, attr))
		m.byQPN[side][e.qp.Num()] = e
	}
	m.ends = append(m.ends, ends[:]...)
	return ends
}

func (m *model) attr(side int) verbs.QPAttr {
	c := &m.cfg
	return verbs.QPAttr{
		PathMTU: c.mtu, SQPSN: c.psn[side], RQPSN: c.psn[1-side],
		AH:          verbs.AHAttr{DGID: verbs.GIDOf(m.nodes[1-side].addr), Port: 1, HopLimit: 64},
		MaxRDAtomic: c.rdAtomic, MaxDestRDAtomic: c.rdAtomic,
		MinRNRTimer: c.rnrTimer, Timeout: c.timeout, RetryCnt: 7, RNRRetry: 7,
	}
}

func (m *model) newEnd(side int, l *simLoop) *modelEnd {
	t, pd, msg := m.t, m.pds[side], modelMaxPackets*m.cfg.mtu.Bytes()
	e := &modelEnd{t: t, w: m.w, rng: m.rng, loop: l, cap: m.cfg.cap, all: m.cfg.all, oneCQ: m.cfg.oneCQ, msg: msg, refs: map[int]int{}}
	e.src = newRegion(t, pd, m.rng, 2*msg, 0)
	e.target = newRegion(t, pd, m.rng, 2*msg, modelRemote)
	e.reads = newSlots(newRegion(t, pd, m.rng, 4*msg, verbs.AccessLocalWrite), msg)
	for _, r := range []*modelRegion{e.src, e.target, e.reads.modelRegion} {
		r.want = append([]byte(nil), r.bytes()...)
	}
	for range 4 {
		mr, err := pd.AllocMR(64, verbs.AccessLocalWrite|verbs.AccessRemoteWrite|verbs.AccessRemoteInvalidate)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, mr.Close()) })
		e.keys = append(e.keys, mr)
	}
	e.own, e.keys = e.keys[0], e.keys[1:]
	init := verbs.QPInitAttr{Type: verbs.QPTRC, Cap: m.cfg.cap, SQSigAll: m.cfg.all}
	init.SendCQ = m.cq(side, l)
	if init.RecvCQ = init.SendCQ; !m.cfg.oneCQ {
		init.RecvCQ = m.cq(side, l)
	}
	qp, err := pd.CreateQP(&init)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, qp.Close()) })
	e.qp = qp
	e.recvs = m.newRecvs(side, l, msg, qp.PostRecv)
	l.turn = append(l.turn, e.turn, func() bool { checkInvariants(t, qp); return false })
	return e
}

func (m *model) newRecvs(side int, l *simLoop, each int, post func(*verbs.RecvWR) error) *modelRecvs {
	r := newRegion(m.t, m.pds[side], m.rng, m.cfg.recvs*each, verbs.AccessLocalWrite)
	clear(r.bytes())
	q := &modelRecvs{
		t: m.t, w: m.w, rng: m.rng, post: post, sges: m.cfg.cap.MaxRecvSGE, slots: newSlots(r, each), lazy: m.cfg.lazy,
	}
	l.turn = append(l.turn, q.turn)
	for range m.cfg.recvs {
		q.again()
	}
	return q
}

// finish runs until everything is done, and then until nothing more happens.
func (m *model) finish(limit time.Duration) {
	m.t.Helper()
	m.w.must(limit, "all work", m.idle)
	m.w.run(time.Second, nil)
	for _, e := range m.ends {
		e.check()
		checkInvariants(m.t, e.qp)
	}
}

func (m *model) idle() bool {
	for _, e := range m.ends {
		if !e.idle() {
			return false
		}
	}
	return true
}
