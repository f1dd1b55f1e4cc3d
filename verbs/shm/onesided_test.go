package shm

import (
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/verbs"
)

// at is a request to the peer's memory at off, for n bytes at the same place here.
func (s *side) at(op verbs.WROpcode, to *side, off, n int) *verbs.SendWR {
	return &verbs.SendWR{Opcode: op, SGList: s.sge(off, n), RemoteAddr: to.mr.Addr() + uint64(off), RKey: to.mr.RKey()}
}

func (s *side) word(off int) uint64 { return binary.NativeEndian.Uint64(s.mr.Bytes()[off:]) }

// READ and atomics need nothing of the peer's loop.
func TestOneSided(t *testing.T) {
	a, b := newSides(t)
	q, _ := rc(a, b, nil)
	copy(b.mr.Bytes()[100:], "hello")
	a.NoError(q.PostSend(a.at(verbs.WRRDMARead, b, 100, 5)))
	a.Equal("hello", string(a.mr.Bytes()[100:105]))
	binary.NativeEndian.PutUint64(b.mr.Bytes()[64:], 40)
	wr := a.at(verbs.WRAtomicFetchAndAdd, b, 64, 8)
	wr.CompareAdd = 2
	a.NoError(q.PostSend(wr))
	a.Equal([2]uint64{40, 42}, [2]uint64{a.word(64), b.word(64)})
	wr = a.at(verbs.WRAtomicCmpAndSwp, b, 64, 8)
	wr.CompareAdd, wr.Swap = 41, 1
	a.NoError(q.PostSend(wr))
	a.Equal([2]uint64{42, 42}, [2]uint64{a.word(64), b.word(64)})
	wr.CompareAdd = 42
	a.NoError(q.PostSend(wr))
	a.Equal([2]uint64{42, 1}, [2]uint64{a.word(64), b.word(64)})
	a.NoError(q.PostSend(&verbs.SendWR{Opcode: verbs.WRRDMARead, RKey: 99}))
	a.poll()
	a.Len(a.send, 5)
	for _, wc := range a.send {
		a.Equal(verbs.WCSuccess, wc.Status)
	}
}

// A READ sees what a SEND before it has brought.
func TestReadAfterSend(t *testing.T) {
	a, b := newSides(t)
	q, d := rc(a, b, nil)
	copy(a.mr.Bytes(), "news")
	b.NoError(d.PostRecv(&verbs.RecvWR{SGList: b.sge(200, 100)}))
	a.NoError(q.PostSend(&verbs.SendWR{Opcode: verbs.WRSend, SGList: a.sge(0, 4)}))
	a.NoError(q.PostSend(a.at(verbs.WRRDMARead, b, 200, 4)))
	a.poll()
	a.Empty(a.send)
	settle(a, b)
	a.Equal([]verbs.WCStatus{verbs.WCSuccess, verbs.WCSuccess}, statuses(a.send))
	a.Equal("news", string(a.mr.Bytes()[200:204]))
}

// If the SEND fails, the READ after it is flushed, in this order.
func TestReadAfterFailedSend(t *testing.T) {
	a, b := newSides(t)
	q, d := rc(a, b, nil)
	b.NoError(d.PostRecv(&verbs.RecvWR{SGList: b.sge(200, 3)}))
	a.NoError(q.PostSend(&verbs.SendWR{Opcode: verbs.WRSend, SGList: a.sge(0, 4)}))
	a.NoError(q.PostSend(a.at(verbs.WRRDMARead, b, 200, 4)))
	settle(a, b)
	a.Equal([]verbs.WCStatus{verbs.WCRemInvReqErr, verbs.WCWRFlushErr}, statuses(a.send))
}

// What was sent before a request that is refused is received.
func TestReceivedBeforeFault(t *testing.T) {
	a, b := newSides(t)
	q, d := rc(a, b, nil)
	b.NoError(d.PostRecv(&verbs.RecvWR{}))
	a.NoError(q.PostSend(imm(5)))
	wr := a.at(verbs.WRRDMARead, b, 0, 8)
	wr.RKey ^= 1
	a.NoError(q.PostSend(wr))
	settle(a, b)
	a.Equal([]verbs.WCStatus{verbs.WCSuccess, verbs.WCRemAccessErr}, statuses(a.send))
	b.Equal([]verbs.WCStatus{verbs.WCSuccess}, statuses(b.recv))
	b.Equal(q.num, b.recv[0].SrcQP)
	b.Equal(verbs.QPSErr, d.State())
}

// Without the right, of the region or of the queue pair, nothing is done.
func TestOneSidedRights(t *testing.T) {
	a, b := newSides(t)
	bare, err := b.p.PD().AllocMR(4096, verbs.AccessLocalWrite|verbs.AccessRemoteWrite)
	b.NoError(err)
	defer bare.Close()
	readOnly, err := a.p.PD().AllocMR(4096, 0)
	a.NoError(err)
	defer readOnly.Close()
	for _, op := range []verbs.WROpcode{verbs.WRRDMARead, verbs.WRAtomicFetchAndAdd, verbs.WRAtomicCmpAndSwp} {
		for name, c := range map[string]struct {
			spoil func(wr *verbs.SendWR, d *qp)
			want  verbs.WCStatus
		}{
			"region":     {func(wr *verbs.SendWR, _ *qp) { wr.RemoteAddr, wr.RKey = bare.Addr(), bare.RKey() }, verbs.WCRemAccessErr},
			"end":        {func(wr *verbs.SendWR, _ *qp) { wr.RemoteAddr = b.mr.Addr() + 1<<20 }, verbs.WCRemAccessErr},
			"tables":     {func(wr *verbs.SendWR, _ *qp) { wr.RemoteAddr = 0 }, verbs.WCRemAccessErr},
			"local":      {func(wr *verbs.SendWR, _ *qp) { wr.SGList[0].Addr, wr.SGList[0].LKey = readOnly.Addr(), readOnly.LKey() }, verbs.WCLocProtErr},
			"queue pair": {func(_ *verbs.SendWR, d *qp) { d.attr.Access = 0; d.publishStatus(lifeAlive, 0); d.tell(newsStatus) }, verbs.WCRemInvReqErr},
			"misaligned": {func(wr *verbs.SendWR, _ *qp) { wr.RemoteAddr++ }, verbs.WCRemInvReqErr},
		} {
			if name == "misaligned" && op == verbs.WRRDMARead {
				continue
			}
			t.Run(op.String()+" "+name, func(t *testing.T) {
				q, d := rc(a, b, nil)
				before := b.word(0)
				wr := a.at(op, b, 0, 8)
				wr.Swap, wr.CompareAdd = before+1, before
				c.spoil(wr, d)
				a.turn()
				require.NoError(t, q.PostSend(wr))
				a.clear()
				settle(a, b)
				require.Equal(t, []verbs.WCStatus{c.want}, statuses(a.send))
				require.Equal(t, verbs.QPSErr, q.State())
				require.Equal(t, before, b.word(0))
			})
		}
	}
	q, _ := rc(a, b, nil)
	a.ErrorIs(q.PostSend(a.at(verbs.WRAtomicFetchAndAdd, b, 0, 7)), verbs.ErrInvalid)
	wr := a.at(verbs.WRRDMARead, b, 0, 8)
	wr.SGList, wr.Inline, wr.Flags = nil, make([]byte, 8), verbs.SendInline
	a.ErrorIs(q.PostSend(wr), verbs.ErrInvalid)
	wr = a.at(verbs.WRRDMARead, b, 0, 8)
	wr.SGList[0].Addr, wr.SGList[0].LKey, wr.Flags = wr.RemoteAddr, wr.RKey, verbs.SendMapped
	a.ErrorIs(q.PostSend(wr), verbs.ErrInvalid)
}

// The peer and the owner count at once; no increment is lost.
func TestAtomicsExclude(t *testing.T) {
	a, b := newSides(t)
	q, _ := rc(b, a, nil)
	word := a.p.own.word(a.mr.Addr())
	stop, counted := make(chan struct{}), make(chan uint64)
	go func() {
		for n := uint64(0); ; n++ {
			select {
			case <-stop:
				counted <- n
				return
			default:
				word.Add(1)
			}
		}
	}()
	const each = 20_000
	wr := b.at(verbs.WRAtomicFetchAndAdd, a, 0, 8)
	wr.SGList, wr.CompareAdd = b.sge(64, 8), 1
	for range each {
		b.NoError(q.PostSend(wr))
		b.poll()
	}
	close(stop)
	require.Equal(t, each+<-counted, word.Load())
}

// A message begun fails in SQD too if the partner goes away.
func TestPartnerGoneInSQD(t *testing.T) {
	a, b := newSides(t)
	q, d := rc(a, b, nil)
	b.NoError(d.PostRecv(&verbs.RecvWR{SGList: b.sge(0, 200_000)}))
	for range 2 {
		a.NoError(q.PostSend(&verbs.SendWR{Opcode: verbs.WRSend, SGList: a.sge(0, 200_000)}))
	}
	a.NoError(q.Modify(&verbs.QPAttr{State: verbs.QPSSQD}, verbs.QPAttrState))
	b.NoError(d.Close())
	settle(a, b)
	a.Equal([]verbs.WCStatus{verbs.WCRetryExcErr, verbs.WCWRFlushErr}, statuses(a.send))
}

// A queue pair that was reset does not get back to a partner that was not.
func TestPartnerUsedBefore(t *testing.T) {
	a, b := newSides(t)
	q, d := rc(a, b, nil)
	b.NoError(d.PostRecv(&verbs.RecvWR{}))
	a.NoError(q.PostSend(imm(1)))
	settle(a, b)
	a.NoError(q.Modify(&verbs.QPAttr{State: verbs.QPSReset}, verbs.QPAttrState))
	a.NoError(verbs.Init(q, allRights))
	a.ErrorIs(verbs.Connect(q, verbs.ConnectAttr(d.num)), verbs.ErrRemoteGone)
	settle(a, b)
	a.NoError(a.p.Err())
	b.NoError(b.p.Err())
}

// SQD finishes the message begun and no other, then says so, once.
func TestDrained(t *testing.T) {
	a, b := newSides(t)
	q, d := rc(a, b, nil)
	drain := func() {
		a.NoError(q.Modify(&verbs.QPAttr{State: verbs.QPSSQD, SQDAsyncNotify: true}, verbs.QPAttrState|verbs.QPAttrSQDAsyncNotify))
	}
	for range 2 {
		b.NoError(d.PostRecv(&verbs.RecvWR{SGList: b.sge(0, 200_000)}))
		a.NoError(q.PostSend(&verbs.SendWR{WRID: 1, Opcode: verbs.WRSend, SGList: a.sge(0, 200_000)}))
	}
	drain()
	a.turn()
	a.Empty(a.events())
	for range 10 {
		settle(a, b)
	}
	a.Len(a.send, 1, "the second was not begun")
	a.Equal([]verbs.EventType{verbs.EventSQDrained}, a.events())
	a.NoError(q.Modify(&verbs.QPAttr{State: verbs.QPSRTS}, verbs.QPAttrState))
	for range 10 {
		settle(a, b)
	}
	a.Len(a.send, 2)
	a.Empty(a.events())
	drain()
	a.turn()
	a.Equal([]verbs.EventType{verbs.EventSQDrained}, a.events())
	a.NoError(q.Modify(&verbs.QPAttr{State: verbs.QPSRTS}, verbs.QPAttrState))
	a.NoError(q.Modify(&verbs.QPAttr{State: verbs.QPSSQD}, verbs.QPAttrState))
	a.turn()
	a.Empty(a.events(), "not asked for")
}
