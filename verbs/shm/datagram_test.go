package shm

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/smcgw/smcgw/lab/loop"
	"github.com/smcgw/smcgw/verbs"
	"github.com/smcgw/smcgw/verbs/internal/queues"
)

// datagram is one of n bytes from offset 0 of the side's region.
func (s *side) datagram(to *qp, n int) *verbs.SendWR {
	return &verbs.SendWR{
		Opcode: verbs.WRSendWithImm, ImmData: uint32(n), SGList: s.sge(0, n), AH: s.ah, RemoteQPN: to.num, RemoteQKey: sideKey,
	}
}

func (s *side) post(q *qp, off, n int) {
	s.t.Helper()
	s.NoError(q.PostRecv(&verbs.RecvWR{WRID: uint64(off), SGList: s.sge(off, grhSize+n)}))
}

func (s *side) dropped() uint64 { return s.d.Stats().Dropped }

// What cannot be delivered is dropped and counted, and what follows arrives.
func TestDatagramDropped(t *testing.T) {
	a, b := newSides(t)
	from, to := a.ud(), b.ud()
	inInit := b.qp(verbs.QPTUD)
	attr := verbs.QPAttr{State: verbs.QPSInit, Port: 1, QKey: sideKey}
	b.NoError(inInit.Modify(&attr, verbs.UDInitMask))
	b.post(inInit, 0, 10)
	inErr := b.ud()
	b.NoError(inErr.Modify(&verbs.QPAttr{State: verbs.QPSErr}, verbs.QPAttrState))
	closed := b.ud()
	b.post(closed, 0, 10)
	b.NoError(closed.Close())
	_, connected := rc(a, b)
	b.NoError(connected.PostRecv(&verbs.RecvWR{}))
	starving := b.ud()
	full := b.ud()
	full.rcq = &cq{vec: full.vec} // no room at all
	b.post(full, 0, 10)
	for name, spoil := range map[string]func(wr *verbs.SendWR){
		"key":         func(wr *verbs.SendWR) { wr.RemoteQKey++ },
		"number":      func(wr *verbs.SendWR) { wr.RemoteQPN ^= 0x10000 },
		"zero":        func(wr *verbs.SendWR) { wr.RemoteQPN = 0 },
		"INIT":        func(wr *verbs.SendWR) { wr.RemoteQPN = inInit.num },
		"ERR":         func(wr *verbs.SendWR) { wr.RemoteQPN = inErr.num },
		"closed":      func(wr *verbs.SendWR) { wr.RemoteQPN = closed.num },
		"RC":          func(wr *verbs.SendWR) { wr.RemoteQPN = connected.num },
		"no receive":  func(wr *verbs.SendWR) { wr.RemoteQPN = starving.num },
		"full CQ":     func(wr *verbs.SendWR) { wr.RemoteQPN = full.num },
		"own numbers": func(wr *verbs.SendWR) { wr.RemoteQPN = from.num + 1<<20 },
	} {
		t.Run(name, func(t *testing.T) {
			a.clear()
			b.clear()
			before := a.dropped() + b.dropped()
			wr := a.datagram(to, 8)
			spoil(wr)
			a.NoError(from.PostSend(wr))
			b.post(to, 0, 8)
			a.NoError(from.PostSend(a.datagram(to, 7)))
			settle(a, b)
			require.Equal(t, before+1, a.dropped()+b.dropped())
			require.Equal(t, []uint32{7}, imms(b.recv))
			require.Equal(t, []verbs.WCStatus{verbs.WCSuccess, verbs.WCSuccess}, statuses(a.send))
		})
	}
}

// A receiver that does not look loses what is more than the ring holds; the
// sender does not wait.
func TestDatagramRingFull(t *testing.T) {
	a, b := newSides(t)
	const burst = dgSlots + 40
	from, to := a.ud(), b.ud()
	to.rq, to.cap.recvWR = queues.NewReceives(dgSlots, 2), dgSlots
	for round := range 3 {
		for range dgSlots {
			b.NoError(to.PostRecv(&verbs.RecvWR{SGList: b.sge(0, 100)}))
		}
		a.clear()
		b.clear()
		for i := range burst {
			a.NoError(from.PostSend(a.datagram(to, i%50)))
			if i%50 == 49 {
				a.turn() // the send queue is shorter
			}
		}
		a.Equal(uint64((round+1)*(burst-dgSlots)), a.dropped())
		settle(a, b)
		a.Len(a.send, burst)
		b.Len(b.recv, dgSlots)
		for i, wc := range b.recv {
			b.Equal(uint32(i%50), wc.ImmData)
		}
	}
}

// A datagram that is too long for its receive stops neither side.
func TestDatagramErrors(t *testing.T) {
	a, b := newSides(t)
	from, to := a.ud(), b.ud()
	b.post(to, 0, 8)
	a.NoError(from.PostSend(a.datagram(to, 9)))
	a.NoError(from.PostSend(a.datagram(to, 8)))
	settle(a, b)
	b.Equal([]verbs.WCStatus{verbs.WCSuccess}, statuses(b.recv))
	b.Equal(uint32(8), b.recv[0].ImmData)
	b.Equal(uint64(1), b.dropped())
	for _, wr := range []*verbs.SendWR{
		{Opcode: verbs.WRSend, RemoteQPN: 1 << 24, AH: a.ah},
		{Opcode: verbs.WRRDMAWrite, RemoteQPN: to.num, AH: a.ah},
	} {
		a.ErrorIs(from.PostSend(wr), verbs.ErrInvalid)
	}
}

// What is posted in SQE and finds no room for its completion is flushed all the same.
func TestSendQueueErrorFullCQ(t *testing.T) {
	a, b := newSides(t)
	from, to := a.ud(), b.ud()
	queue, err := queues.NewCompletions(1, maxCQE)
	a.NoError(err)
	from.scq = &cq{vec: from.vec, queue: queue}
	a.NoError(from.PostSend(a.datagram(to, maxDatagram+1)))
	a.NoError(from.PostSend(a.datagram(to, 1)))
	a.NoError(from.Modify(&verbs.QPAttr{State: verbs.QPSRTS}, verbs.QPAttrState))
	a.NoError(from.PostSend(a.datagram(to, 2)))
	var got []verbs.WCStatus
	for range 4 {
		var wcs [2]verbs.WC
		n, _ := from.scq.Poll(wcs[:])
		got = append(got, statuses(wcs[:n])...)
		a.turn()
	}
	a.Equal([]verbs.WCStatus{verbs.WCLocLenErr, verbs.WCWRFlushErr, verbs.WCSuccess}, got)
}

// Vectors of both sides have rings of their own, and a sleeping loop is woken.
func TestDatagramVectors(t *testing.T) {
	const vectors, each = 3, 20
	da, db, pa, pb := met(t, func(c *Config) { c.Vectors = vectors })
	got := make(chan verbs.WC, 10*vectors*vectors*each)
	start := func(d *Device, p *Peer, v int) (*loop.Loop, verbs.QP) {
		cq, err := d.CreateCQ(verbs.CQAttr{Depth: 1024, Vector: v})
		require.NoError(t, err)
		q, err := p.PD().CreateQP(&verbs.QPInitAttr{
			SendCQ: cq, RecvCQ: cq, Type: verbs.QPTUD, Cap: verbs.QPCap{MaxSendWR: 200, MaxRecvWR: 200, MaxSendSGE: 1, MaxRecvSGE: 1},
		})
		require.NoError(t, err)
		mr, err := p.PD().RegMR(make([]byte, 100), verbs.AccessLocalWrite)
		require.NoError(t, err)
		l, err := loop.New(d, v, func() bool {
			var wcs [16]verbs.WC
			n, _ := cq.Poll(wcs[:])
			for _, wc := range wcs[:n] {
				got <- wc
			}
			return n > 0
		})
		require.NoError(t, err)
		require.NoError(t, l.Do(func() {
			require.NoError(t, verbs.StartUD(q, 1, 0))
			for range vectors * each {
				require.NoError(t, q.PostRecv(&verbs.RecvWR{SGList: []verbs.SGE{{Addr: mr.Addr(), Length: 100, LKey: mr.LKey()}}}))
			}
		}))
		t.Cleanup(func() {
			require.NoError(t, l.Do(func() { _ = q.Close() }))
			require.NoError(t, l.Close())
			require.NoError(t, mr.Close())
		})
		return l, q
	}
	ah, err := pa.PD().CreateAH(verbs.AHAttr{})
	require.NoError(t, err)
	defer ah.Close()
	var from, to []uint32
	var loops []*loop.Loop
	var qps []verbs.QP
	for v := range vectors {
		l, q := start(da, pa, v)
		loops, qps, from = append(loops, l), append(qps, q), append(from, q.Num())
		_, q = start(db, pb, v)
		to = append(to, q.Num())
	}
	for i := range each {
		for v, l := range loops {
			require.NoError(t, l.Do(func() {
				for _, dest := range to {
					_ = qps[v].PostSend(&verbs.SendWR{Opcode: verbs.WRSendWithImm, ImmData: uint32(i), AH: ah, RemoteQPN: dest, RemoteQKey: 1})
				}
			}))
		}
	}
	next := map[[2]uint32]uint32{}
	for range vectors * vectors * each {
		select {
		case wc := <-got:
			require.Equal(t, verbs.WCSuccess, wc.Status)
			path := [2]uint32{wc.SrcQP, wc.QPNum}
			require.Equal(t, next[path], wc.ImmData)
			next[path]++
		case <-time.After(patience):
			require.Fail(t, "lost", "%v, dropped %d and %d", next, da.Stats().Dropped, db.Stats().Dropped)
		}
	}
	for path := range next {
		require.True(t, slices.Contains(from, path[0]) && slices.Contains(to, path[1]))
	}
}

// A datagram arrives exactly if there is room, a queue pair with the key and a
// receive, whatever else goes on.
func TestDatagramModel(t *testing.T) {
	a, b := newSides(t)
	rapid.Check(t, func(rt *rapid.T) {
		from := a.ud()
		to := []*qp{b.ud(), b.ud()}
		inRing, receives := []int(nil), []int{0, 0}
		var want []uint32
		a.clear()
		b.clear()
		look := func() {
			b.turn()
			for _, m := range inRing {
				if k := m & 1; m >= 0 && receives[k] > 0 {
					receives[k]--
					want = append(want, uint32(m))
				}
			}
			inRing = nil
		}
		for i := range rapid.IntRange(1, 300).Draw(rt, "steps") {
			switch rapid.IntRange(0, 9).Draw(rt, "action") {
			case 0:
				look()
			case 1, 2, 3:
				if k := i % 2; receives[k] < sideCap.MaxRecvWR {
					b.post(to[k], 0, 100)
					receives[k]++
				}
			default:
				wr := a.datagram(to[i%2], i%60)
				wr.ImmData = uint32(i)
				good := rapid.IntRange(0, 5).Draw(rt, "key") > 0
				if !good {
					wr.RemoteQKey = 99
				}
				require.NoError(rt, from.PostSend(wr))
				if len(inRing) < dgSlots {
					if good {
						inRing = append(inRing, i)
					} else {
						inRing = append(inRing, -2) // takes a slot and no receive
					}
				}
				a.poll()
			}
		}
		look()
		require.Equal(rt, want, imms(b.recv))
		for _, q := range append(to, from) {
			require.NoError(rt, q.Close())
		}
	})
}
