package shm

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/verbs"
)

func uc(a, b *side, from verbs.SRQ) (qa, qb *qp) {
	qa, qb = a.qp(verbs.QPTUC, nil), b.qp(verbs.QPTUC, from)
	for _, q := range []*qp{qa, qb} {
		a.NoError(verbs.Init(q, allRights))
	}
	a.NoError(verbs.ConnectUC(qa, verbs.ConnectAttr(qb.num)))
	b.NoError(verbs.ConnectUC(qb, verbs.ConnectAttr(qa.num)))
	return qa, qb
}

func (s *side) sendOf(v uint32, n int) *verbs.SendWR {
	return &verbs.SendWR{Opcode: verbs.WRSendWithImm, ImmData: v, SGList: s.sge(0, n)}
}

// A message without a receive, or with one that is too small, is dropped as a
// whole; the receive serves the next one. With shared receives too.
func TestUCDrops(t *testing.T) {
	for _, shared := range []bool{false, true} {
		a, b := newSides(t)
		var r verbs.SRQ
		if shared {
			r = b.srq(8)
		}
		q, d := uc(a, b, r)
		post := func(n int) {
			if wr := (&verbs.RecvWR{SGList: b.sge(0, n)}); shared {
				b.NoError(r.PostRecv(wr))
			} else {
				b.NoError(d.PostRecv(wr))
			}
		}
		a.NoError(q.PostSend(a.sendOf(1, 10_000)))
		a.NoError(q.PostSend(imm(2)))
		settle(a, b)
		b.Equal(uint64(2), b.dropped())
		post(10_000)
		copy(a.mr.Bytes(), "third")
		a.NoError(q.PostSend(a.sendOf(3, 20_000)))
		a.NoError(q.PostSend(a.sendOf(4, 5)))
		settle(a, b)
		b.Equal([]uint32{4}, imms(b.recv))
		b.Equal(uint32(5), b.recv[0].ByteLen)
		b.Equal("third", string(b.mr.Bytes()[:5]))
		b.Equal(uint64(3), b.dropped())
		a.Len(a.send, 4)
		for _, wc := range a.send {
			a.Equal(verbs.WCSuccess, wc.Status)
		}
	}
}

// A message that its sender gives up half way, for an error of its own, does
// not disturb the next.
func TestUCAbandoned(t *testing.T) {
	a, b := newSides(t)
	q, d := uc(a, b, nil)
	for range 3 {
		b.NoError(d.PostRecv(&verbs.RecvWR{SGList: b.sge(0, 20_000)}))
	}
	wr := a.sendOf(1, 5000)
	wr.SGList = append(wr.SGList, verbs.SGE{Addr: a.mr.Addr(), Length: 5000, LKey: ^uint32(0)})
	a.NoError(q.PostSend(wr))
	a.Equal(verbs.QPSSQE, q.State())
	settle(a, b)
	a.NoError(q.Modify(&verbs.QPAttr{State: verbs.QPSRTS}, verbs.QPAttrState))
	a.NoError(q.PostSend(a.sendOf(2, 9000)))
	a.NoError(q.PostSend(imm(3)))
	settle(a, b)
	b.Equal([]uint32{2, 3}, imms(b.recv))
	a.Equal([]verbs.WCStatus{verbs.WCLocProtErr, verbs.WCSuccess, verbs.WCSuccess}, statuses(a.send))
	b.NoError(b.p.Err())
}

// A sender of UC learns nothing of a partner that has gone.
func TestUCPartnerGone(t *testing.T) {
	a, b := newSides(t)
	q, d := uc(a, b, nil)
	b.NoError(d.PostRecv(&verbs.RecvWR{SGList: b.sge(0, 1<<18)}))
	a.NoError(q.PostSend(a.sendOf(1, 1<<17))) // more than is staged at once
	b.turn()
	b.NoError(d.Close())
	settle(a, b)
	a.NoError(q.PostSend(a.sendOf(2, 10)))
	wr := a.at(verbs.WRRDMAWrite, b, 0, 8)
	a.NoError(q.PostSend(wr))
	settle(a, b)
	a.Equal([]verbs.WCStatus{verbs.WCSuccess, verbs.WCSuccess, verbs.WCSuccess}, statuses(a.send))
	a.Equal(verbs.QPSRTS, q.State())
}

// Transports do not mix, and each has its operations.
func TestTransports(t *testing.T) {
	a, b := newSides(t)
	reliable, unreliable := a.qp(verbs.QPTRC, nil), b.qp(verbs.QPTUC, nil)
	a.NoError(verbs.Init(reliable, allRights))
	b.NoError(verbs.Init(unreliable, allRights))
	a.ErrorIs(verbs.Connect(reliable, verbs.ConnectAttr(unreliable.num)), verbs.ErrRemoteGone)
	a.ErrorIs(verbs.Connect(reliable, verbs.ConnectAttr(b.ud(nil).num)), verbs.ErrRemoteGone)
	q, _ := uc(a, b, nil)
	for _, op := range []verbs.WROpcode{verbs.WRRDMARead, verbs.WRAtomicCmpAndSwp, verbs.WRAtomicFetchAndAdd, verbs.WRSendWithInv, verbs.WRLocalInv} {
		a.ErrorIs(q.PostSend(&verbs.SendWR{Opcode: op}), verbs.ErrInvalid)
	}
	a.ErrorIs(q.PostSend(&verbs.SendWR{Opcode: verbs.WRBindMW}), verbs.ErrNotSupported)
}

// LOCAL_INV completes when the peer cannot be using the region any more, and
// what is posted after it waits.
func TestLocalInvWaitsForPeer(t *testing.T) {
	a, b := newSides(t)
	q, d := rc(a, b, nil)
	other, _ := rc(a, b, nil)
	span, err := q.MapRemote(b.mr.RKey(), b.mr.Addr(), 8)
	a.NoError(err)
	b.NoError(d.PostSend(&verbs.SendWR{WRID: 1, Opcode: verbs.WRLocalInv, InvRKey: b.mr.LKey()}))
	b.NoError(d.PostSend(&verbs.SendWR{WRID: 2, Opcode: verbs.WRRDMAWrite}))
	for range 5 {
		b.turn()
		b.p.pollGrace()
	}
	b.Empty(b.send)
	copy(span, "late")
	a.turn()
	eventually(t, patience, func() bool { b.turn(); return len(b.send) == 2 }, "completed")
	b.Equal([]verbs.WCStatus{verbs.WCSuccess, verbs.WCSuccess}, statuses(b.send))
	_, err = q.MapRemote(b.mr.RKey(), b.mr.Addr(), 8)
	a.ErrorIs(err, verbs.ErrAccess)
	a.NoError(other.PostSend(a.at(verbs.WRRDMARead, b, 0, 8)))
	a.poll()
	a.Equal(verbs.WCRemAccessErr, a.send[0].Status)
	b.NoError(d.PostSend(&verbs.SendWR{Opcode: verbs.WRLocalInv, InvRKey: b.mr.LKey() ^ 1}))
	b.poll()
	b.Equal(verbs.WCLocQPOpErr, b.send[2].Status)
}

// The end of the peer ends the wait.
func TestLocalInvPeerDown(t *testing.T) {
	a, b := newSides(t)
	_, d := rc(a, b, nil)
	b.NoError(d.PostSend(&verbs.SendWR{Opcode: verbs.WRLocalInv, InvRKey: b.mr.LKey()}))
	a.NoError(a.p.Close())
	<-b.p.Done()
	settle(a, b)
	require.Len(t, b.send, 1)
	require.Equal(t, verbs.QPSErr, d.State())
}

// Flags that would make the user believe what was not done end the peer.
func TestHostileInvalidation(t *testing.T) {
	for name, words := range map[string][2]uint64{
		"of a WRITE":          {entryWriteImm | entryInv, 0},
		"with an immediate":   {entrySegment | entryFirst | entryLast | entryInv | entryImm, 0},
		"of a WRITE, flagged": {entryWriteImm | entryImm | entryInv, 0},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHostileSides(t)
			h.a.NoError(h.q.PostRecv(&verbs.RecvWR{}))
			h.put(h.q.blk.off+blkRing, words[0])
			h.put(h.q.blk.off+blkRing+8, words[1])
			h.put(h.q.blk.off+blkProd, 1)
			h.q.vec.schedule(h.q)
			h.a.turn()
			require.ErrorIs(t, h.a.p.Err(), ErrViolation)
		})
	}
}
