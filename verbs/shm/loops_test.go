package shm

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/lab/loop"
	"github.com/smcgw/smcgw/verbs"
)

// streams are queue pairs of one vector that send numbered messages, as many as
// fit into their send queues.
type streams struct {
	cq   verbs.CQ
	qps  []verbs.QP
	next []uint32
	wr   verbs.SendWR
	todo uint32
	done atomic.Int64 // completions
	bad  atomic.Pointer[verbs.WC]
}

func (s *streams) turn() bool {
	var wcs [16]verbs.WC
	n, _ := s.cq.Poll(wcs[:])
	for i := range wcs[:n] {
		if wcs[i].Status != verbs.WCSuccess {
			s.bad.Store(&wcs[i])
		}
		s.done.Add(1)
	}
	worked := n > 0
	for i, q := range s.qps {
		for s.next[i] < s.todo {
			s.wr.ImmData = s.next[i]
			if q.PostSend(&s.wr) != nil {
				break
			}
			s.next[i]++
			worked = true
		}
	}
	return worked
}

// sink takes them with the queue pairs of one vector, few at a time.
type sink struct {
	cq   verbs.CQ
	qps  map[uint32]verbs.QP
	want map[uint32]uint32 // by queue pair: the number that comes next
	got  atomic.Int64
	bad  atomic.Pointer[verbs.WC]
}

func (s *sink) turn() bool {
	var wcs [16]verbs.WC
	n, _ := s.cq.Poll(wcs[:])
	for i := range wcs[:n] {
		wc := &wcs[i]
		if wc.Status != verbs.WCSuccess || wc.ImmData != s.want[wc.QPNum] {
			s.bad.Store(wc)
		}
		s.want[wc.QPNum]++
		s.got.Add(1)
		_ = s.qps[wc.QPNum].PostRecv(&verbs.RecvWR{})
	}
	return n > 0
}

// Many queue pairs with few receives share a CQ with little room on real loops of two
// vectors each: all messages arrive, in order, and no queue pair is left asleep.
func TestLoops(t *testing.T) {
	const vectors, pairs, messages, receives = 2, 8, 1000, 3
	da, db, pa, pb := met(t, func(c *Config) { c.Vectors = vectors })
	src, dst := make([]*streams, vectors), make([]*sink, vectors)
	var loopsA, loopsB []*loop.Loop
	for v := range vectors {
		a, b := &streams{todo: messages}, &sink{qps: map[uint32]verbs.QP{}, want: map[uint32]uint32{}}
		src[v], dst[v] = a, b
		var err error
		a.cq, err = da.CreateCQ(verbs.CQAttr{Depth: 256, Vector: v})
		require.NoError(t, err)
		b.cq, err = db.CreateCQ(verbs.CQAttr{Depth: 4, Vector: v})
		require.NoError(t, err)
		out, err := pa.PD().RegMR(make([]byte, 9000), 0)
		require.NoError(t, err)
		in, err := pb.PD().AllocMR(9000, allRights)
		require.NoError(t, err)
		a.wr = verbs.SendWR{
			Opcode: verbs.WRRDMAWriteWithImm, SGList: []verbs.SGE{{Addr: out.Addr(), Length: 9000, LKey: out.LKey()}}, RemoteAddr: in.Addr(), RKey: in.RKey(),
		}
		la, err := loop.New(da, v, func() bool { return src[v].turn() })
		require.NoError(t, err)
		lb, err := loop.New(db, v, func() bool { return dst[v].turn() })
		require.NoError(t, err)
		loopsA, loopsB = append(loopsA, la), append(loopsB, lb)
		t.Cleanup(func() { _ = la.Close(); _ = lb.Close(); _ = in.Close(); _ = out.Close() })
	}
	for i := range pairs {
		a, b := src[i%vectors], dst[i/2%vectors]
		capacity := verbs.QPCap{MaxSendWR: 8, MaxSendSGE: 1, MaxRecvWR: receives}
		qa, err := pa.PD().CreateQP(&verbs.QPInitAttr{SendCQ: a.cq, RecvCQ: a.cq, Type: verbs.QPTRC, SQSigAll: true, Cap: capacity})
		require.NoError(t, err)
		qb, err := pb.PD().CreateQP(&verbs.QPInitAttr{SendCQ: b.cq, RecvCQ: b.cq, Type: verbs.QPTRC, Cap: capacity})
		require.NoError(t, err)
		require.NoError(t, loopsB[i/2%vectors].Do(func() {
			err = connectTo(qb, qa)
			b.qps[qb.Num()] = qb
			for range receives {
				_ = qb.PostRecv(&verbs.RecvWR{})
			}
		}))
		require.NoError(t, err)
		require.NoError(t, loopsA[i%vectors].Do(func() {
			err = connectTo(qa, qb)
			a.qps, a.next = append(a.qps, qa), append(a.next, 0)
		}))
		require.NoError(t, err)
		t.Cleanup(func() {
			require.NoError(t, loopsA[i%vectors].Do(func() { _ = qa.Close() }))
			require.NoError(t, loopsB[i/2%vectors].Do(func() { _ = qb.Close() }))
		})
	}
	sum := func() (sent, got int64) {
		for v := range vectors {
			sent, got = sent+src[v].done.Load(), got+dst[v].got.Load()
		}
		return sent, got
	}
	deadline := time.Now().Add(patience)
	for sent, got := sum(); sent+got < 2*pairs*messages; sent, got = sum() {
		for v := range vectors {
			require.Nil(t, src[v].bad.Load())
			require.Nil(t, dst[v].bad.Load())
		}
		require.True(t, time.Now().Before(deadline), "stuck: %d sent, %d received", sent, got)
		time.Sleep(time.Millisecond)
	}
}

func connectTo(q, dest verbs.QP) error {
	if err := verbs.Init(q, allRights); err != nil {
		return err
	}
	return verbs.Connect(q, verbs.ConnectAttr(dest.Num()))
}
