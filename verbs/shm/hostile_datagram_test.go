package shm

import (
	"context"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/verbs"
)

// hostileSides is a pair of which B writes what it likes: into A's memory and
// into its own, which A reads.
type hostileSides struct {
	a, b *side
	ud   *qp
	q    *qp    // A's, receives
	s    *qp    // A's, sends
	in   uint64 // A's datagram ring, in A's memory
	out  uint64 // the ring to B, in B's memory
}

func newHostileSides(t testing.TB) *hostileSides {
	h := &hostileSides{}
	h.a, h.b = newSides(t)
	h.ud = h.a.ud()
	_, h.q = rc(h.b, h.a)
	h.s, _ = rc(h.a, h.b)
	h.in = h.a.p.ownLayout.datagrams(0, 0)
	h.out = h.b.p.ownLayout.datagrams(0, 0)
	settle(h.a, h.b)
	for range 8 {
		h.a.NoError(h.ud.PostRecv(&verbs.RecvWR{SGList: h.a.sge(0, 100)}))
	}
	return h
}

// put writes a word of A's memory, get to what A reads of B's.
func (h *hostileSides) put(off, v uint64) { h.b.p.rem.word(off).Store(v) }
func (h *hostileSides) own(off, v uint64) { h.b.p.own.word(off).Store(v) }

// datagram publishes one of three words.
func (h *hostileSides) datagram(w0, w1, w2 uint64) {
	for i, w := range []uint64{w0, w1, w2} {
		h.put(h.in+dgRing+uint64(i)*8, w)
	}
	h.put(h.in+dgProd, 1)
	h.mark(0)
}

func (h *hostileSides) mark(bit uint64) {
	area := h.a.p.ownLayout.area(0)
	h.put(area+areaBitmap, 1<<bit)
	h.put(area+areaSummary, 1)
}

// Rings and datagrams no honest peer writes end the peer, and only it.
func TestHostileDatagram(t *testing.T) {
	good := func(h *hostileSides) uint64 { return uint64(h.ud.num) }
	for name, spoil := range map[string]func(h *hostileSides){
		"too many":    func(h *hostileSides) { h.put(h.in+dgProd, dgSlots+1); h.mark(0) },
		"fewer":       func(h *hostileSides) { h.put(h.in+dgProd, ^uint64(0)); h.mark(0) },
		"too long":    func(h *hostileSides) { h.datagram(good(h), sideKey<<32, (maxDatagram+1)<<32) },
		"length":      func(h *hostileSides) { h.datagram(good(h), sideKey<<32, 0xffffffff<<32) },
		"flags":       func(h *hostileSides) { h.datagram(good(h), sideKey<<32, entryImm<<1) },
		"source":      func(h *hostileSides) { h.datagram(good(h)|1<<56, sideKey<<32, 0) },
		"destination": func(h *hostileSides) { h.datagram(good(h)|1<<24, sideKey<<32, 0) },
		"consumed": func(h *hostileSides) {
			to := h.b.ud()
			h.own(h.out+dgCons, 1000)
			for i := range dgSlots + 1 {
				_ = h.ud.PostSend(h.a.datagram(to, 8))
				if i%50 == 49 {
					h.a.turn() // the send queue is shorter
				}
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHostileSides(t)
			spoil(h)
			h.a.turn()
			require.ErrorIs(t, h.a.p.Err(), ErrViolation)
			h.a.turn()
			for _, q := range []*qp{h.ud, h.q, h.s} {
				require.Equal(t, verbs.QPSErr, q.State())
			}
			require.Equal(t, uint64(1), h.a.d.Stats().Violations)
		})
	}
}

// What a stale or odd peer may write costs a datagram, at most.
func TestOddDatagram(t *testing.T) {
	h := newHostileSides(t)
	for bit := range uint64(firstSlot) {
		h.mark(bit) // vectors it does not have
		h.a.turn()
	}
	h.datagram(uint64(h.q.num), sideKey<<32, 0)
	h.a.turn()
	h.a.NoError(h.a.p.Err())
	h.a.Equal(uint64(1), h.a.dropped())
	to := h.b.ud()
	entry := h.b.p.ownLayout.qpEntry(to.slot)
	word := h.b.p.own.word(entry).Load()
	for _, odd := range []uint64{word &^ 0xff, word&^0xff | kindRC, word | 0xffff<<16, word + 1<<32, word | 0xff} {
		h.own(entry, odd)
		h.a.NoError(h.ud.PostSend(h.a.datagram(to, 8)))
	}
	h.a.Equal(uint64(6), h.a.dropped())
	h.own(entry, word)
	h.a.NoError(h.ud.PostSend(h.a.datagram(to, 8)))
	h.a.Equal(uint64(6), h.a.dropped())
	h.a.NoError(h.a.p.Err())
}

// A datagram reaches the queue pairs of its own peer only, whatever number it names.
func TestDatagramOfAnotherPeer(t *testing.T) {
	h := newHostileSides(t)
	c := openDevice(t, h.a.d.cfg.Dir)
	_, err := c.Listen()
	require.NoError(t, err)
	pc, err := c.Offer()
	require.NoError(t, err)
	p, err := h.a.d.Attach(context.Background(), pc.Name(), pc.Key())
	require.NoError(t, err)
	other, err := p.PD().CreateQP(&verbs.QPInitAttr{
		SendCQ: h.a.cq, RecvCQ: h.a.cq, Type: verbs.QPTUD, Cap: verbs.QPCap{MaxSendWR: 1, MaxRecvWR: 1, MaxRecvSGE: 1},
	})
	require.NoError(t, err)
	defer other.Close()
	require.NoError(t, verbs.StartUD(other, sideKey, 0))
	mr, err := p.PD().RegMR(make([]byte, 100), verbs.AccessLocalWrite)
	require.NoError(t, err)
	defer mr.Close()
	require.NoError(t, other.PostRecv(&verbs.RecvWR{SGList: []verbs.SGE{{Addr: mr.Addr(), Length: 100, LKey: mr.LKey()}}}))
	h.a.turn()
	h.datagram(uint64(other.Num()), sideKey<<32, 0)
	h.a.turn()
	h.a.Empty(h.a.recv)
	h.a.Equal(uint64(1), h.a.dropped())
	h.a.NoError(h.a.p.Err())
}

// remBlock is the offset of the partner's block in the peer's memory.
func (q *qp) remBlock() uint64 {
	e, _ := q.peer.findQP(q.rem.qpn)
	return e.off
}

// Random words over everything the peer can write, with receives, datagrams and WRITEs
// under way: no panic, no hang, no access outside.
func TestScribble(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	for range 80 {
		h := newHostileSides(t)
		h.scribble(rng)
		require.NoError(t, h.a.drv.Close())
	}
}

func (h *hostileSides) scribble(rng *rand.Rand) {
	values := []func() uint64{
		rng.Uint64, func() uint64 { return rng.Uint64N(4) }, func() uint64 { return ^uint64(0) },
		func() uint64 { return rng.Uint64N(100) << 32 }, func() uint64 { return uint64(h.ud.num) },
		func() uint64 { return sideKey << 32 }, func() uint64 { return rng.Uint64N(1 << 12) },
		func() uint64 { return lifeAlive | uint64(allRights)<<32 }, func() uint64 { return h.q.blk.off + rng.Uint64N(9000) },
	}
	to := h.b.ud()
	for range 300 {
		mine := []uint64{
			h.in, h.in + dgRing, h.q.blk.off, h.q.blk.off + blkRing, h.s.blk.off, h.a.p.ownLayout.area(0) + areaBitmap, rng.Uint64N(32) * 512,
		}
		theirs := []uint64{
			h.out, h.s.remBlock(), h.b.p.ownLayout.qpEntry(to.slot), h.b.p.ownLayout.qpEntry(slotOf(h.s.rem.qpn)),
			h.b.p.ownLayout.mrTable + 32,
		}
		v, off := values[rng.IntN(len(values))](), rng.Uint64N(64)*8
		if rng.IntN(2) == 0 {
			h.put(mine[rng.IntN(len(mine))]+off, v)
		} else {
			h.own(theirs[rng.IntN(len(theirs))]+off%256, v)
		}
		h.mark(0)
		_ = h.ud.PostRecv(&verbs.RecvWR{SGList: h.a.sge(0, 100)})
		_ = h.q.PostRecv(&verbs.RecvWR{SGList: h.a.sge(0, 100)})
		_ = h.ud.PostSend(h.a.datagram(to, rng.IntN(100)))
		wr := h.a.write(verbs.WROpcode(rng.IntN(2)), h.b, 8*rng.IntN(100), 8)
		if rng.IntN(2) == 0 {
			wr.RemoteAddr, wr.RKey = rng.Uint64N(16<<20), rng.Uint32N(4)<<16|1
		}
		_ = h.s.PostSend(wr)
		if b, err := h.s.MapRemote(rng.Uint32N(4)<<16|1, rng.Uint64(), 10); err == nil {
			b[0] = 1
		}
		for _, q := range []*qp{h.q, h.s} {
			q.vec.schedule(q)
		}
		h.a.drv.Progress(time.Now())
		h.a.poll()
		h.a.drv.Flush()
		if h.a.drv.Arm() {
			h.a.drv.Disarm()
		}
	}
}

// FuzzDatagram lets the fuzzer write a datagram ring.
func FuzzDatagram(f *testing.F) {
	f.Add([]byte{0, 1, 0, 0, 0, 0, 0, 0, 0}, []byte{0, 65, 0, 0, 0, 0, 0, 0, 0})
	f.Add([]byte{3, 0, 0, 0, 0, 100, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0}, []byte{0, 255, 255, 255, 255, 255, 255, 255, 255})
	f.Fuzz(func(t *testing.T, first, second []byte) {
		h := newHostileSides(t)
		h.put(h.in+dgRing, uint64(h.ud.num))
		h.put(h.in+dgRing+8, sideKey<<32)
		for _, b := range [][]byte{first, second} {
			for ; len(b) >= 9; b = b[9:] {
				v := uint64(0)
				for i, x := range b[1:9] {
					v |= uint64(x) << (8 * i)
				}
				off := uint64(0) // the published count, else a word of the ring
				if b[0] > 0 {
					off = dgRing + uint64(b[0]-1)*8
				}
				h.put(h.in+off, v)
			}
			h.mark(0)
			settle(h.a, h.b)
		}
	})
}
