package rsocket

import (
	"slices"
	"sync/atomic"

	"github.com/smcgw/smcgw/rmb"
)

// sendRing is the send buffer: a byte ring with one producer, which fills it, and one owner, which posts what was
// produced and frees what has been sent. They may be different goroutines; neither waits for the other. Offsets are
// absolute. The zero ring has no room.
//
//	freed ≤ posted ≤ produced ≤ freed + size
type sendRing struct {
	buf []byte

	// Written by the producer alone.
	produced atomic.Uint64
	head     int // where the next byte goes

	_ [64]byte // the halves are written by different processors

	// Written by the owner alone.
	freed  atomic.Uint64
	posted uint64
	next   int // where the next byte to post is

	// held says why the owner leaves what was produced, until a completion that is sure to come.
	held atomic.Uint32

	// full says that the producer found no room and wants to be told: set by the producer, cleared by the owner.
	full atomic.Bool
}

// Values of held.
const (
	heldNot     = iota
	heldSmall   // less than a batch gathers
	heldBlocked // nothing can be sent
)

// init makes an empty ring over buf.
func (r *sendRing) init(buf []byte) { r.buf = slices.Clip(buf[:min(len(buf), rmb.MaxRing)]) }

// free returns the number of bytes that may be produced.
func (r *sendRing) free() int { return len(r.buf) - int(r.produced.Load()-r.freed.Load()) }

// span returns the contiguous memory for the next bytes, for the producer.
func (r *sendRing) span() []byte { return r.cut(r.head, r.free()) }

// produce publishes the first n bytes of the span, for the producer.
func (r *sendRing) produce(n int) error {
	if n < 0 || n > r.free() || n > len(r.buf)-r.head {
		return rmb.ErrOverrun
	}
	if r.head += n; r.head == len(r.buf) {
		r.head = 0
	}
	r.produced.Store(r.produced.Load() + uint64(n))
	return nil
}

// wanting tells the producer whether what it produced needs the owner's attention. Who holds looks at produced again
// after it has let go, so what was produced before held was seen is seen.
func (r *sendRing) wanting() bool {
	switch r.held.Load() {
	case heldBlocked:
		return false
	case heldSmall:
		return r.produced.Load()-r.freed.Load() >= batchBytes
	}
	return true
}

// unposted returns the number of bytes produced and not posted, for the owner.
func (r *sendRing) unposted() int { return int(r.produced.Load() - r.posted) }

// pending returns the oldest bytes not posted as far as they are contiguous, for the owner.
func (r *sendRing) pending() []byte { return r.cut(r.next, r.unposted()) }

// post records that the first n bytes of pending were posted and returns where in the buffer they are.
func (r *sendRing) post(n int) int {
	at := r.next
	if r.next += n; r.next >= len(r.buf) {
		r.next = 0
	}
	r.posted += uint64(n)
	return at
}

// freeTo frees everything before the absolute offset, for the owner, and reports whether the producer waits for it.
func (r *sendRing) freeTo(offset uint64) (awaited bool, err error) {
	freed := r.freed.Load()
	if offset == freed {
		return false, nil
	}
	if offset < freed || offset > r.posted {
		return false, rmb.ErrUnderrun
	}
	r.freed.Store(offset)
	return r.full.Load() && r.full.CompareAndSwap(true, false), nil
}

// at returns the longest contiguous run of posted, unfreed bytes from the absolute offset on, for the owner.
func (r *sendRing) at(offset uint64) []byte {
	if offset < r.freed.Load() || offset >= r.posted {
		return nil
	}
	back := int(r.posted - offset)
	start := r.next - back
	if start < 0 {
		start += len(r.buf)
	}
	return r.cut(start, back)
}

// cut returns up to n contiguous bytes; its capacity ends there too.
func (r *sendRing) cut(start, n int) []byte {
	end := start + min(n, len(r.buf)-start)
	return r.buf[start:end:end]
}
