package verbstest

import (
	"encoding/binary"
	"math/rand/v2"

	"github.com/smcgw/smcgw/verbs"
)

var mixedTests = []test{
	{"OneDirection", func(e *env) { e.mixed(1, e.a) }},
	{"OtherDirection", func(e *env) { e.mixed(2, e.b) }},
	{"BothDirections", func(e *env) { e.mixed(3, e.a, e.b) }},
	{"SmallPackets", func(e *env) { e.mixed(4, e.a, e.b) }},
}

// A region in the mixed tests has four quarters: the target of the peer's writes and reads, the source of sends, which
// never changes, receive buffers, and results of READs and atomics. The last two are divided into slots by sequence
// number.
const (
	quarter  = regionSize / 4
	slotSize = quarter / 16
)

// stream is a random sequence of all operations of the device in one direction,
// with a model of what they do to memory.
type stream struct {
	e        *env
	rnd      *rand.Rand
	from, to *end
	ops      []verbs.WROpcode
	model    []byte   // first quarter of to
	wants    [][]byte // by posted work request: the expected result, nil for none
	msgs     []msg    // expected at the peer
	posted   int
	checked  int
	received int
	supplied int
	loose    bool // a READ or atomic was posted since the last fence
	fences   int  // requests posted up to the last fenced one
}

// msg is a message that uses a receive.
type msg struct {
	op      verbs.WCOpcode
	imm     uint32
	withImm bool
	n       int
	data    []byte // of a SEND
}

const mixedTotal = 400

// mixed runs random work from the given ends at once.
func (e *env) mixed(seed uint64, from ...*end) {
	mtu := verbs.MTU4096
	if seed == 4 {
		mtu = verbs.MTU256
	}
	e.connect(pathMTU(min(mtu, e.a.Device.Port().ActiveMTU)), func(a *verbs.QPAttr) {
		a.MinRNRTimer = 1
		depth := uint8(min(8, max(1, e.a.Device.Attr().MaxRDAtomic)))
		a.MaxRDAtomic, a.MaxDestRDAtomic = depth, depth
		a.SQPSN, a.RQPSN = 0xffff00, 0xffff00
	})
	var streams []*stream
	for i, d := range from {
		streams = append(streams, e.newStream(d, rand.New(rand.NewPCG(seed, uint64(i)))))
	}
	e.until("all done", func() bool {
		done := true
		for _, s := range streams {
			s.turn()
			done = done && s.checked == mixedTotal && s.received == len(s.msgs)
		}
		return done
	})
	for _, s := range streams {
		e.same(s.model, s.to.bytes(0, quarter))
	}
}

func (e *env) newStream(from *end, rnd *rand.Rand) *stream {
	s := &stream{e: e, rnd: rnd, from: from, to: from.peer}
	s.ops = []verbs.WROpcode{verbs.WRRDMAWrite, verbs.WRRDMAWriteWithImm}
	if from.has(verbs.OpSend) {
		s.ops = append(s.ops, verbs.WRSend, verbs.WRSendWithImm)
	}
	if from.has(verbs.OpRDMARead) {
		s.ops = append(s.ops, verbs.WRRDMARead)
	}
	if from.has(verbs.OpAtomic) && !e.pair.badFence() {
		s.ops = append(s.ops, verbs.WRAtomicFetchAndAdd, verbs.WRAtomicCmpAndSwp)
	}
	for _, b := range [][]byte{from.bytes(quarter, quarter), s.to.bytes(0, quarter)} {
		for i := range b {
			b[i] = byte(rnd.Uint32())
		}
	}
	s.model = append([]byte{}, s.to.bytes(0, quarter)...)
	return s
}

func (s *stream) turn() {
	for s.posted < mixedTotal && s.posted-s.checked < testCap.MaxSendWR && s.rnd.IntN(4) > 0 {
		s.post()
	}
	for s.supplied-s.received < testCap.MaxRecvWR && s.rnd.IntN(3) > 0 {
		off := 2*quarter + s.supplied%16*slotSize
		cut := s.rnd.IntN(slotSize)
		s.to.recv(uint64(s.supplied), s.to.sge(off, cut), s.to.sge(off+cut, slotSize-cut))
		s.supplied++
	}
	s.e.turn()
	for ; s.checked < len(s.from.wcs); s.checked++ {
		wc := s.from.wcs[s.checked]
		s.e.Equal(verbs.WCSuccess, wc.Status)
		s.e.Equal(uint64(s.checked), wc.WRID)
		if want := s.wants[s.checked]; want != nil {
			s.e.same(want, s.from.bytes(3*quarter+s.checked%16*slotSize, len(want)), "%v %d", wc.Opcode, s.checked)
		}
	}
	for ; s.received < len(s.to.recvs); s.received++ {
		s.check(s.to.recvs[s.received], s.msgs[s.received])
	}
}

func (s *stream) check(wc verbs.WC, m msg) {
	s.e.Equal(verbs.WCSuccess, wc.Status)
	s.e.Equal(uint64(s.received), wc.WRID)
	s.e.Equal(m.op, wc.Opcode)
	s.e.Equal(uint32(m.n), wc.ByteLen)
	s.e.Equal(m.withImm, wc.Flags&verbs.WCWithImm != 0)
	if m.withImm {
		s.e.Equal(m.imm, wc.ImmData)
	}
	s.e.same(m.data, s.to.bytes(2*quarter+s.received%16*slotSize, len(m.data)), "SEND %d", s.received)
}

// length returns a length that is small, at the edge of a packet, or large.
func (s *stream) length() int {
	switch s.rnd.IntN(3) {
	case 0:
		return s.rnd.IntN(20)
	case 1:
		return max(0, 256<<s.rnd.IntN(5)+s.rnd.IntN(3)-1)
	}
	return s.rnd.IntN(slotSize)
}

// op returns a random operation, but no READ if the device would hang.
func (s *stream) op() verbs.WROpcode {
	op := s.ops[s.rnd.IntN(len(s.ops))]
	if s.e.pair.badFence() && op == verbs.WRRDMARead && s.fences > s.checked {
		return verbs.WRRDMAWrite
	}
	return op
}

// post posts a random work request and executes it in the model.
func (s *stream) post() {
	op := s.op()
	n, src, dst := s.length(), quarter+s.rnd.IntN(quarter-slotSize), s.rnd.IntN(quarter-slotSize)
	wr := &verbs.SendWR{
		WRID: uint64(s.posted), Opcode: op, ImmData: s.rnd.Uint32(), RemoteAddr: s.to.mr.Addr() + uint64(dst), RKey: s.to.mr.RKey(),
	}
	// Without a fence, work after a READ or atomic may be executed before it (IBTA vol. 1, 10.8.3.3).
	if s.loose && op != verbs.WRRDMARead {
		wr.Flags |= verbs.SendFence
		s.loose, s.fences = false, s.posted+1
	}
	var want []byte
	result := 3*quarter + s.posted%16*slotSize
	switch op {
	case verbs.WRRDMARead:
		wr.SGList = []verbs.SGE{s.from.sge(result, n/3), s.from.sge(result+n/3, n-n/3)}
		want = append([]byte{}, s.model[dst:dst+n]...)
		s.loose = true
	case verbs.WRAtomicFetchAndAdd, verbs.WRAtomicCmpAndSwp:
		want = s.atomic(wr, dst&^7)
		wr.SGList = []verbs.SGE{s.from.sge(result, 8)}
		s.loose = true
	default:
		s.message(wr, src, dst, n)
	}
	s.from.post(wr)
	s.wants = append(s.wants, want)
	s.posted++
}

func (s *stream) message(wr *verbs.SendWR, src, dst, n int) {
	data := s.from.bytes(src, n)
	if n <= testCap.MaxInline && s.rnd.IntN(2) == 0 {
		wr.Inline = append([]byte{}, data...)
		wr.Flags |= verbs.SendInline
	} else {
		wr.SGList = []verbs.SGE{s.from.sge(src, n/2), s.from.sge(src+n/2, n-n/2)}
	}
	m := msg{op: verbs.WCRecv, imm: wr.ImmData, n: n, withImm: wr.Opcode == verbs.WRSendWithImm || wr.Opcode == verbs.WRRDMAWriteWithImm}
	switch wr.Opcode {
	case verbs.WRRDMAWrite, verbs.WRRDMAWriteWithImm:
		copy(s.model[dst:], data)
		m.op = verbs.WCRecvRDMAWithImm
	default:
		m.data = data
	}
	if wr.Opcode != verbs.WRRDMAWrite {
		s.msgs = append(s.msgs, m)
	}
}

// atomic makes wr an atomic on the model's word at off and returns the previous value.
func (s *stream) atomic(wr *verbs.SendWR, off int) []byte {
	word := s.model[off : off+8]
	want := append([]byte{}, word...)
	old := binary.NativeEndian.Uint64(word)
	wr.RemoteAddr = s.to.mr.Addr() + uint64(off)
	wr.CompareAdd, wr.Swap = s.rnd.Uint64(), s.rnd.Uint64()
	switch {
	case wr.Opcode == verbs.WRAtomicFetchAndAdd:
		binary.NativeEndian.PutUint64(word, old+wr.CompareAdd)
	case s.rnd.IntN(2) == 0:
		wr.CompareAdd = old
		binary.NativeEndian.PutUint64(word, wr.Swap)
	case wr.CompareAdd == old:
		binary.NativeEndian.PutUint64(word, wr.Swap)
	}
	return want
}
