package shm

import (
	"context"
	"encoding/binary"
	"hash/fnv"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/lab/loop"
	"github.com/smcgw/smcgw/verbs"
)

// pump streams random messages into the peer's ring, in place, and checks what
// it receives; both ends run at once, asleep and awake, on real loops.
type pump struct {
	qp     verbs.QP
	own    verbs.MR // the peer writes here
	addr   uint64   // and we there
	rkey   uint32
	rng    *rand.Rand
	todo   int
	total  uint32
	seq    uint32
	seen   uint32
	owed   int // answers to be posted
	credit int
	busy   bool
	failed atomic.Pointer[string]
	once   sync.Once
	done   chan struct{} // all sent, answered and received, or failed
}

const (
	pumpSlot  = 8192
	pumpSlots = 16
)

func (p *pump) fail(why string) {
	p.failed.CompareAndSwap(nil, &why)
	p.once.Do(func() { close(p.done) })
}

// pumps are those of a vector, which share its CQ.
type pumps struct {
	cq  verbs.CQ
	all []*pump
}

func (s *pumps) turn() bool {
	var wcs [8]verbs.WC
	n, _ := s.cq.Poll(wcs[:])
	worked := n > 0
	for i := range wcs[:n] {
		for _, p := range s.all {
			if p.qp.Num() == wcs[i].QPNum {
				p.handle(&wcs[i])
			}
		}
	}
	for _, p := range s.all {
		if p.busy {
			worked = p.turn() || worked
		}
	}
	return worked
}

// turn sends while it has credit. A slot is free when its message was answered
// by an immediate without data; so both directions carry both kinds.
func (p *pump) turn() (worked bool) {
	if p.failed.Load() != nil {
		return false
	}
	for p.owed > 0 && p.qp.PostSend(&verbs.SendWR{Opcode: verbs.WRRDMAWriteWithImm, Flags: verbs.SendSignaled}) == nil {
		p.owed--
		worked = true
	}
	for p.todo > 0 && p.credit > 0 {
		if !p.send() {
			break
		}
		worked = true
	}
	if p.todo == 0 && p.credit == pumpSlots && p.seen == p.total && p.owed == 0 {
		p.once.Do(func() { close(p.done) })
	}
	return worked
}

func (p *pump) handle(wc *verbs.WC) {
	switch {
	case wc.Status != verbs.WCSuccess:
		p.fail("status " + wc.Status.String())
	case wc.Opcode != verbs.WCRecvRDMAWithImm:
	case wc.ByteLen == 0:
		p.credit++
		_ = p.qp.PostRecv(&verbs.RecvWR{})
	default:
		p.check(wc)
	}
}

func (p *pump) check(wc *verbs.WC) {
	slot := int(p.seen%pumpSlots) * pumpSlot
	b := p.own.Bytes()[slot : slot+int(wc.ByteLen)]
	h := fnv.New64a()
	_, _ = h.Write(b[8:])
	if wc.ImmData != p.seen || binary.LittleEndian.Uint64(b) != h.Sum64() {
		p.fail("message out of order or damaged")
		return
	}
	p.seen++
	p.owed++
	_ = p.qp.PostRecv(&verbs.RecvWR{})
}

func (p *pump) send() bool {
	slot := uint64(p.seq%pumpSlots) * pumpSlot
	n := 9 + p.rng.IntN(pumpSlot-9)
	b, err := p.qp.(verbs.RemoteMapper).MapRemote(p.rkey, p.addr+slot, n)
	if err != nil {
		p.fail(err.Error())
		return false
	}
	for i := 8; i < n; i += 1 + p.rng.IntN(50) {
		b[i] = byte(p.rng.Uint32())
	}
	h := fnv.New64a()
	_, _ = h.Write(b[8:])
	binary.LittleEndian.PutUint64(b, h.Sum64())
	wr := verbs.SendWR{
		Opcode: verbs.WRRDMAWriteWithImm, ImmData: p.seq, Flags: verbs.SendMapped | verbs.SendSignaled, RemoteAddr: p.addr + slot, RKey: p.rkey,
		SGList: []verbs.SGE{{Addr: p.addr + slot, Length: uint32(n), LKey: p.rkey}},
	}
	if err := p.qp.PostSend(&wr); err != nil {
		return false
	}
	p.seq++
	p.credit--
	p.todo--
	return true
}

func newPump(t *testing.T, cq verbs.CQ, p *Peer, todo, receives int) *pump {
	u := &pump{rng: rand.New(rand.NewPCG(uint64(todo), 1)), todo: todo, total: uint32(todo), credit: pumpSlots, done: make(chan struct{})}
	var err error
	u.own, err = p.PD().AllocMR(pumpSlot*pumpSlots, verbs.AccessLocalWrite|verbs.AccessRemoteWrite)
	require.NoError(t, err)
	attr := verbs.QPInitAttr{SendCQ: cq, RecvCQ: cq, Type: verbs.QPTRC, Cap: verbs.QPCap{MaxSendWR: 64, MaxRecvWR: receives, MaxSendSGE: 1}}
	u.qp, err = p.PD().CreateQP(&attr)
	require.NoError(t, err)
	require.NoError(t, verbs.Init(u.qp, verbs.AccessLocalWrite|verbs.AccessRemoteWrite))
	for range receives {
		require.NoError(t, u.qp.PostRecv(&verbs.RecvWR{}))
	}
	return u
}

// Many queue pairs on loops of two vectors each, full duplex, with much room in CQs and
// receive queues and with little: nothing is lost, damaged or reordered, and no queue pair
// is left asleep.
func TestLoopsStress(t *testing.T) {
	for name, c := range map[string]struct{ depth, receives, messages int }{"much room": {1024, 40, 2000}, "little room": {4, 3, 500}} {
		t.Run(name, func(t *testing.T) { loopsStress(t, c.depth, c.receives, c.messages) })
	}
}

func loopsStress(t *testing.T, depth, receives, messages int) {
	const pairs, vectors = 8, 2
	a, b, pa, pb := met(t, func(c *Config) { c.Vectors = vectors; c.PeerQuota = 32 << 20 })
	var loops [2][vectors]*loop.Loop
	var work [2][vectors]*pumps
	for i, d := range []*Device{a, b} {
		for v := range vectors {
			cq, err := d.CreateCQ(verbs.CQAttr{Depth: depth, Vector: v})
			require.NoError(t, err)
			work[i][v] = &pumps{cq: cq}
			loops[i][v], err = loop.New(d, v, work[i][v].turn)
			require.NoError(t, err)
		}
	}
	type placed struct {
		*pump
		loop *loop.Loop
	}
	var all []placed
	for i := range pairs {
		at := [2]int{i % vectors, i / 2 % vectors}
		var ends [2]*pump
		for k, p := range []*Peer{pa, pb} {
			ends[k] = newPump(t, work[k][at[k]].cq, p, messages, receives)
		}
		for k, u := range ends {
			peer := ends[1-k]
			u.addr, u.rkey = peer.own.Addr(), peer.own.RKey()
			all = append(all, placed{u, loops[k][at[k]]})
			var err error
			require.NoError(t, loops[k][at[k]].Do(func() {
				err = verbs.Connect(u.qp, verbs.ConnectAttr(peer.qp.Num()))
				u.busy = err == nil
				work[k][at[k]].all = append(work[k][at[k]].all, u)
			}))
			require.NoError(t, err)
		}
	}
	for _, u := range all {
		select {
		case <-u.done:
			require.Nil(t, u.failed.Load())
		case <-time.After(patience):
			require.Fail(t, "stuck", "todo %d, credit %d, seen %d", u.todo, u.credit, u.seen)
		}
	}
	for _, u := range all {
		require.NoError(t, u.loop.Do(func() { _ = u.qp.Close() }))
		require.NoError(t, u.own.Close())
	}
	for _, ls := range loops {
		for _, l := range ls {
			require.NoError(t, l.Close())
		}
	}
}

// Without bytes a sleeping loop is woken by the peer's Flush, and only then.
func TestDoorbell(t *testing.T) {
	h := newHostilePair(t)
	for range 5 {
		require.NoError(t, h.qb.PostRecv(&verbs.RecvWR{}))
	}
	h.turn()
	require.True(t, h.db.Arm())
	sent := func() uint64 { return h.pa.dev.Stats().BellsSent }
	before := sent()
	post := func(flags verbs.SendFlags) {
		require.NoError(t, h.qa.PostSend(&verbs.SendWR{Opcode: verbs.WRRDMAWriteWithImm, Flags: flags}))
	}
	post(0)
	post(0)
	require.Equal(t, before, sent(), "deferred")
	h.da.Flush()
	require.Equal(t, before+1, sent(), "one for both")
	h.da.Flush()
	require.Equal(t, before+1, sent())
	require.False(t, h.db.Arm(), "work is waiting")
	h.db.Progress(time.Now())
	require.True(t, h.db.Arm())
	post(verbs.SendPush)
	require.Equal(t, before+2, sent(), "pushed")
	h.db.Disarm()
	h.db.Progress(time.Now())
	post(0)
	h.da.Flush()
	require.Equal(t, before+2, sent(), "awake: suppressed")
}

// Bytes ring without Flush.
func TestBytesRing(t *testing.T) {
	h := newHostilePair(t)
	mr, err := h.pb.PD().AllocMR(1<<20, verbs.AccessLocalWrite|verbs.AccessRemoteWrite)
	require.NoError(t, err)
	src, err := h.pa.PD().RegMR(make([]byte, 1<<20), 0)
	require.NoError(t, err)
	require.NoError(t, h.qb.PostRecv(&verbs.RecvWR{}))
	h.turn()
	require.True(t, h.db.Arm())
	before := h.pa.dev.Stats().BellsSent
	wr := verbs.SendWR{Opcode: verbs.WRRDMAWriteWithImm, RemoteAddr: mr.Addr(), RKey: mr.RKey(), SGList: []verbs.SGE{{Addr: src.Addr(), Length: 1, LKey: src.LKey()}}}
	require.NoError(t, h.qa.PostSend(&wr))
	require.Equal(t, before+1, h.pa.dev.Stats().BellsSent)
	require.NoError(t, mr.Close())
	require.NoError(t, src.Close())
}

// The end of a peer fails and flushes what waits for it.
func TestPeerDownFlushes(t *testing.T) {
	h := newHostilePair(t)
	require.NoError(t, h.qa.PostRecv(&verbs.RecvWR{WRID: 1}))
	for i := range uint64(3) {
		require.NoError(t, h.qa.PostSend(&verbs.SendWR{WRID: 10 + i, Opcode: verbs.WRRDMAWriteWithImm}))
	}
	require.NoError(t, h.pb.Close())
	<-h.pa.Done()
	h.turn()
	h.turn()
	wcs := make([]verbs.WC, 10)
	n, err := h.cqa.Poll(wcs)
	require.NoError(t, err)
	status := map[uint64]verbs.WCStatus{}
	for _, wc := range wcs[:n] {
		status[wc.WRID] = wc.Status
	}
	require.Equal(t, map[uint64]verbs.WCStatus{
		1: verbs.WCWRFlushErr, 10: verbs.WCRetryExcErr, 11: verbs.WCWRFlushErr, 12: verbs.WCWRFlushErr,
	}, status)
	_, err = h.qa.MapRemote(1, 1, 1)
	require.ErrorIs(t, err, verbs.ErrRemoteGone)
	require.NoError(t, h.qa.PostSend(&verbs.SendWR{WRID: 20, Opcode: verbs.WRRDMAWrite}))
	n, err = h.cqa.Poll(wcs)
	require.NoError(t, err)
	require.Equal(t, 1, n)
	require.Equal(t, verbs.WCWRFlushErr, wcs[0].Status)
}

// A peer ends while loops, allocations and attachments go on; nothing hangs.
func TestPeerDownUnderLoad(t *testing.T) {
	for range 10 {
		d, dir := listening(t)
		c := openDevice(t, dir)
		p := offer(t, d)
		pc, err := c.Attach(context.Background(), p.Name(), p.Key())
		require.NoError(t, err)
		hd, hc := newHost(t, d, p), newHost(t, c, pc)
		hd.connect(hc.qp.Num())
		hc.connect(hd.qp.Num())
		stop := make(chan struct{})
		alloc := make(chan struct{})
		go func() {
			defer close(alloc)
			for {
				select {
				case <-stop:
					return
				default:
				}
				if mr, err := p.PD().AllocMR(4096, verbs.AccessLocalWrite); err == nil {
					_ = mr.Close()
				}
			}
		}()
		for i := range uint32(50) {
			hd.post(i)
		}
		require.NoError(t, pc.Close())
		hd.do(func() error { _ = hd.qp.PostSend(&verbs.SendWR{Opcode: verbs.WRRDMAWrite}); return nil })
		<-p.Done()
		close(stop)
		<-alloc
		hd.close()
		hc.close()
	}
}
