package soft

import (
	"bytes"
	"net/netip"
	"slices"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/verbs"
	"github.com/smcgw/smcgw/verbs/soft/wire"
)

// hostile is a device with two kinds of peers: a well-behaved one, with which
// it has a connection that must not notice anything (the victim), and one that
// sends whatever it likes. The latter is no device, only packets.
type hostile struct {
	t        simTB
	m        *model // nodes[0] is the device, nodes[1] the victim's peer
	dev      *simNode
	pd       verbs.PD
	victim   [2]*modelEnd
	ah       verbs.AH // of the hostile peer
	qps      []*hostileQP
	statuses []verbs.WCStatus // of their completions, the last ones

	granted  *modelRegion // the hostile peer may do anything to it
	readOnly *modelRegion // the hostile peer may read it
	private  *modelRegion // for the device itself only
	foreign  *modelRegion // of another protection domain, all rights
	local    *modelRegion // where receives and READs of the device go
}

// hostileQP is a queue pair of the device whose peer is hostile.
type hostileQP struct {
	verbs.QP
	dest  uint32 // the peer's queue pair
	rqPSN uint32 // first expected
	sent  []wire.Header
}

const (
	hostileQPN  = 0x4321 // and up: of the peer that does not exist
	hostileQKey = 0x8001234
	hostilePSN  = 0xfffffa
)

var (
	hostileAddr  = netip.MustParseAddr("10.0.0.66")
	strangerAddr = netip.MustParseAddr("10.0.0.77")
)

func newHostile(t simTB, seed uint64) *hostile {
	c := modelConfig{
		seed: seed, vectors: 2, mtu: verbs.MTU256, psn: [2]uint32{0xfffff0, 5}, all: true, recvs: 8,
		rdAtomic: 2, rnrTimer: 5, timeout: 10,
		cap: verbs.QPCap{MaxSendWR: 8, MaxRecvWR: 8, MaxSendSGE: 2, MaxRecvSGE: 2, MaxInline: 32},
	}
	h := &hostile{t: t, m: newModel(t, c)}
	h.dev = h.m.nodes[0]
	h.m.w.limit = 200_000
	h.m.w.net.scatter = 0.3
	h.victim = h.m.connect([2]int{1, 0})
	var err error
	h.pd, err = h.dev.dev.AllocPD()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, h.pd.Close()) })
	h.memory()
	h.queuePairs()
	h.ah, err = h.pd.CreateAH(verbs.AHAttr{DGID: verbs.GIDOf(hostileAddr), Port: 1})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, h.ah.Close()) })
	h.m.w.net.route(h.dev.addr, hostileAddr).tap = h.see
	return h
}

func (h *hostile) memory() {
	t, rng := h.t, h.m.rng
	const size = 4096
	h.granted = guardedRegion(t, h.pd, rng, size, modelRemote|verbs.AccessRemoteInvalidate)
	h.readOnly = guardedRegion(t, h.pd, rng, size, verbs.AccessLocalWrite|verbs.AccessRemoteRead)
	h.private = guardedRegion(t, h.pd, rng, size, verbs.AccessLocalWrite)
	h.foreign = guardedRegion(t, h.m.pds[0], rng, size, modelRemote)
	h.local = guardedRegion(t, h.pd, rng, 2*size, verbs.AccessLocalWrite)
	for _, r := range h.untouchable() {
		r.want = append([]byte(nil), r.bytes()...)
	}
}

func (h *hostile) untouchable() []*modelRegion {
	return []*modelRegion{h.readOnly, h.private, h.foreign}
}

// queuePairs makes one of every type and state that receives or could be
// mistaken for one that does.
func (h *hostile) queuePairs() {
	l := h.dev.loops[0]
	cq := h.m.pollCQ(0, l, func(wc *verbs.WC) {
		h.statuses = append(h.statuses[max(0, len(h.statuses)-15):], wc.Status)
	})
	for _, k := range []struct {
		t     verbs.QPType
		state verbs.QPState
	}{
		{verbs.QPTRC, verbs.QPSRTS},
		{verbs.QPTUC, verbs.QPSRTS},
		{verbs.QPTUD, verbs.QPSRTS},
		{verbs.QPTRC, verbs.QPSRTR},
		{verbs.QPTRC, verbs.QPSInit},
		{verbs.QPTRC, verbs.QPSErr},
		{verbs.QPTRC, verbs.QPSReset},
		{verbs.QPTUC, verbs.QPSRTR},
		{verbs.QPTRC, verbs.QPSRTS},
	} {
		qp, err := h.pd.CreateQP(&verbs.QPInitAttr{
			SendCQ: cq, RecvCQ: cq, Type: k.t, SQSigAll: true,
			Cap: verbs.QPCap{MaxSendWR: 8, MaxRecvWR: 8, MaxSendSGE: 2, MaxRecvSGE: 2, MaxInline: 16},
		})
		require.NoError(h.t, err)
		h.t.Cleanup(func() { require.NoError(h.t, qp.Close()) })
		q := &hostileQP{QP: qp, dest: hostileQPN + uint32(len(h.qps)), rqPSN: hostilePSN}
		h.bring(q, k.state)
		h.qps = append(h.qps, q)
	}
}

// bring takes a queue pair from RESET to a state.
func (h *hostile) bring(q *hostileQP, state verbs.QPState) {
	attr := verbs.QPAttr{
		PathMTU: verbs.MTU256, SQPSN: hostilePSN, RQPSN: hostilePSN, DestQPNum: q.dest, QKey: hostileQKey,
		AH: verbs.AHAttr{DGID: verbs.GIDOf(hostileAddr), Port: 1, HopLimit: 64}, Port: 1, Access: modelRemote,
		MaxRDAtomic: 2, MaxDestRDAtomic: 2, MinRNRTimer: 1, Timeout: 8, RetryCnt: 2, RNRRetry: 2,
	}
	masks := [...]verbs.QPAttrMask{
		verbs.QPSInit: verbs.InitMask, verbs.QPSRTR: verbs.RTRMask, verbs.QPSRTS: verbs.RTSMask,
	}
	switch q.Type() {
	case verbs.QPTUC:
		masks[verbs.QPSRTR], masks[verbs.QPSRTS] = verbs.UCRTRMask, verbs.SQPSNMask
	case verbs.QPTUD:
		masks[verbs.QPSInit], masks[verbs.QPSRTR], masks[verbs.QPSRTS] = verbs.UDInitMask, verbs.QPAttrState, verbs.SQPSNMask
	default:
	}
	if state == verbs.QPSErr {
		attr.State = verbs.QPSErr
		require.NoError(h.t, q.Modify(&attr, verbs.QPAttrState))
		return
	}
	for s := verbs.QPSInit; s <= state; s++ {
		attr.State = s
		require.NoError(h.t, q.Modify(&attr, masks[s]), "%v to %v", q.Type(), s)
	}
	q.sent = nil
}

// see remembers what the device sends to the hostile peer, which is how the
// peer knows the packet sequence numbers.
func (h *hostile) see(_ netip.AddrPort, data []byte) simVerdict {
	var hdr wire.Header
	payload, err := hdr.Parse(data)
	require.NoError(h.t, err, "the device sent rubbish")
	if len(payload) >= 16 && hdr.Opcode.Traits()&(wire.Response|wire.Read) == wire.Response|wire.Read {
		for _, r := range []*modelRegion{h.private, h.foreign, h.victim[0].target} {
			require.False(h.t, bytes.Contains(r.bytes(), payload[:16]), "memory that was not granted is shown to a peer")
		}
	}
	for _, q := range h.qps {
		if q.dest != hdr.DestQP {
			continue
		}
		if len(q.sent) == 16 {
			q.sent = q.sent[1:]
		}
		q.sent = append(q.sent, hdr)
	}
	return simDrop
}

// send injects a datagram.
func (h *hostile) send(from netip.Addr, port uint16, data []byte) {
	h.m.w.net.arrive(netip.AddrPortFrom(from, port), simSocket(h.dev), len(data)%8 == 0, data)
}

// seal completes a packet: padding and ICRC. wrong spoils the latter.
func (h *hostile) seal(from netip.Addr, port uint16, hdr *wire.Header, payload []byte, wrong bool) []byte {
	b := hdr.Append(nil, len(payload))
	n := len(b)
	b = append(b, payload...)
	b = append(b, make([]byte, wire.Pad(len(payload)))...)
	return h.sum(from, port, b, n, wrong)
}

// sum appends the ICRC to a packet whose headers are n bytes.
func (h *hostile) sum(from netip.Addr, port uint16, b []byte, n int, wrong bool) []byte {
	if len(b)+wire.ICRCLen > wire.MaxLen || n < wire.BTHLen || len(b) < n {
		return append(b, 0, 0, 0, 0)
	}
	icrc := wire.NewICRC(wire.Flow{Src: from, Dst: h.dev.addr, SrcPort: port, DstPort: verbs.RoCEUDPPort})
	state := icrc.Begin(0, len(b)+wire.ICRCLen, b[:n])
	if wrong {
		state ^= 0x00010001 << (len(b) % 16)
	}
	return wire.AppendICRC(slices.Clip(b), wire.Update(state, b[n:]))
}

// refused runs what was sent, which ends the first queue pair and leaves the granted memory as it was before.
func (h *hostile) refused(before string) {
	h.m.w.run(time.Millisecond, nil)
	require.Equal(h.t, verbs.QPSErr, h.qps[0].State())
	require.Equal(h.t, before, string(h.granted.bytes()))
	h.check()
}

// check looks at everything that the hostile peer must not have reached, and
// lets the victim finish.
func (h *hostile) check() {
	for _, q := range h.qps {
		checkInvariants(h.t, q.QP)
	}
	h.m.finish(time.Minute)
	for _, r := range h.untouchable() {
		requireSame(h.t, r.want, r.bytes(), "memory that was not granted")
	}
	for _, r := range append(h.untouchable(), h.granted, h.local) {
		r.checkFrame(h.t)
	}
}
