package verbstest

import (
	"encoding/binary"

	"github.com/smcgw/smcgw/verbs"
)

var atomicTests = where((*env).canAtomic, []test{
	{"FetchAndAdd", testFetchAndAdd},
	{"CompareAndSwap", testCompareAndSwap},
	{"ManyOutstanding", testAtomicMany},
	{"TwoQueuePairs", testAtomicTwo},
	{"Fence", testAtomicFence},
	{"Length", testAtomicLength},
	{"Misaligned", testAtomicMisaligned},
	{"Key", testAtomicKey},
	{"RegionRights", testAtomicRights},
	{"QueuePairRights", testAtomicQueuePairRights},
	{"LocalRights", testAtomicLocalRights},
})

func (e *env) canAtomic() bool {
	return e.can(verbs.OpAtomic, verbs.WRAtomicCmpAndSwp, verbs.WRAtomicFetchAndAdd)
}

// word returns a 64-bit number in the end's region; atomics work in host byte order (ibv_post_send(3)).
func (d *end) word(off int) uint64 { return binary.NativeEndian.Uint64(d.bytes(off, 8)) }

func (d *end) setWord(off int, v uint64) { binary.NativeEndian.PutUint64(d.bytes(off, 8), v) }

// add makes a FETCH_AND_ADD of the peer's word at off; the original goes to the same offset here.
func (d *end) add(id uint64, off int, v uint64) *verbs.SendWR {
	wr := d.write(verbs.WRAtomicFetchAndAdd, id, d.peer, off, 8)
	wr.CompareAdd = v
	return wr
}

// IBTA vol. 1, 9.4.5.1: the sum has 64 bits and no carry; the original comes back.
func testFetchAndAdd(e *env) {
	e.b.setWord(64, 40)
	e.a.post(e.a.add(0, 64, 2))
	wc := e.a.sent(1)
	e.Equal(verbs.WC{Opcode: verbs.WCFetchAdd, QPNum: e.a.qp.Num(), ByteLen: wc.ByteLen, SrcQP: wc.SrcQP}, wc)
	e.Equal(uint64(42), e.b.word(64))
	e.Equal(uint64(40), e.a.word(64))
	e.a.post(e.a.add(1, 64, ^uint64(0)-41))
	e.a.good(2)
	e.Equal(uint64(0), e.b.word(64))
	e.Equal(uint64(42), e.a.word(64))
}

// IBTA vol. 1, 9.4.5.2.
func testCompareAndSwap(e *env) {
	swap := func(id, compare, to uint64) *verbs.SendWR {
		wr := e.a.write(verbs.WRAtomicCmpAndSwp, id, e.b, 8, 8)
		wr.CompareAdd, wr.Swap = compare, to
		return wr
	}
	e.b.setWord(8, 0x1122334455667788)
	e.a.post(swap(0, 0x1122334455667788, 0x99aabbccddeeff00))
	e.Equal(verbs.WCCompSwap, e.a.sent(1).Opcode)
	e.Equal(uint64(0x99aabbccddeeff00), e.b.word(8))
	e.Equal(uint64(0x1122334455667788), e.a.word(8))
	e.a.post(swap(1, 1, 2))
	e.a.good(2)
	e.Equal(uint64(0x99aabbccddeeff00), e.b.word(8), "differs: unchanged")
	e.Equal(uint64(0x99aabbccddeeff00), e.a.word(8))
}

// Each executes once, in order, however many wait (max_rd_atomic).
func testAtomicMany(e *env) {
	for i := range 100 {
		wr := e.a.add(uint64(i), 0, 3)
		wr.SGList[0] = e.a.sge(8*i, 8)
		e.until("room", func() bool { return i-len(e.a.wcs) < testCap.MaxSendWR })
		e.a.post(wr)
	}
	e.a.good(100)
	e.Equal(uint64(300), e.b.word(0))
	for i := range 100 {
		e.Equal(uint64(3*i), e.a.word(8*i))
	}
}

// Atomics of different queue pairs on one word exclude each other: no original is returned twice.
func testAtomicTwo(e *env) {
	other, _ := e.second(verbs.QPInitAttr{Cap: testCap, SQSigAll: true}, verbs.QPInitAttr{Cap: testCap, SQSigAll: true})
	for i := range 8 {
		for j, qp := range []verbs.QP{e.a.qp, other} {
			wr := e.a.add(1, 0, 1)
			wr.SGList[0] = e.a.sge(8*(2*i+j), 8)
			e.NoError(qp.PostSend(wr))
		}
	}
	e.a.sent(16)
	e.Equal(uint64(16), e.b.word(0))
	seen := map[uint64]bool{}
	for i := range 16 {
		seen[e.a.word(8*i)] = true
	}
	e.Len(seen, 16)
}

// Fence waits for atomics as for READs.
func testAtomicFence(e *env) {
	e.b.setWord(0, 5)
	e.b.recv(1, e.b.sge(1000, 8))
	e.a.post(e.a.add(0, 0, 1))
	wr := e.a.send(1, 0, 8)
	wr.Flags = verbs.SendFence
	e.a.post(wr)
	e.b.received(1)
	e.Equal(uint64(5), e.b.word(1000))
}

// The original has 8 bytes: no other buffer size works (ibv_post_send(3)). It is refused immediately, or fails when the
// response arrives.
func testAtomicLength(e *env) {
	wr := e.a.add(1, 0, 1)
	wr.SGList[0].Length = 7
	if err := e.a.qp.PostSend(wr); err != nil {
		e.ErrorIs(err, verbs.ErrInvalid)
		return
	}
	e.Contains([]verbs.WCStatus{verbs.WCLocLenErr, verbs.WCLocQPOpErr}, e.a.sent(1).Status)
}

// The word must be aligned: invalid request (IBTA vol. 1, 9.7.4.1.6; rocev2.md 8.3).
func testAtomicMisaligned(e *env) {
	misaligned := func() *verbs.SendWR {
		wr := e.a.add(1, 64, 1)
		wr.RemoteAddr += 4
		return wr
	}
	before := e.b.word(64)
	e.a.post(misaligned())
	if e.a.sent(1).Status == verbs.WCLocQPOpErr { // refused before it was sent
		e.Equal(verbs.QPSErr, e.a.qp.State())
		e.Equal(before, e.b.word(64))
		return
	}
	e.renew()
	e.connect()
	e.refusedWith(misaligned(), verbs.WCRemInvReqErr)
}

func testAtomicKey(e *env) {
	wr := e.a.add(1, 0, 1)
	wr.RKey ^= 1
	e.refusedWith(wr, verbs.WCRemAccessErr)
}

func testAtomicRights(e *env) {
	mr := e.b.alloc(bothWrite)
	wr := e.a.add(1, 0, 1)
	wr.RemoteAddr, wr.RKey = mr.Addr(), mr.RKey()
	e.refusedWith(wr, verbs.WCRemAccessErr)
	e.same(make([]byte, 8), mr.Bytes()[:8])
}

func testAtomicQueuePairRights(e *env) {
	e.renew()
	e.a.init()
	e.NoError(verbs.Init(e.b.qp, bothWrite))
	e.join()
	e.refusedWith(e.a.add(1, 0, 1), verbs.WCRemInvReqErr)
}

func testAtomicLocalRights(e *env) {
	mr := e.a.alloc(0)
	wr := e.a.add(1, 0, 1)
	wr.SGList = []verbs.SGE{sgeOf(mr, 8)}
	e.a.post(wr)
	e.Equal(verbs.WCLocProtErr, e.a.sent(1).Status)
}
