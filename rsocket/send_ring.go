package rsocket

import (
	"slices"
	"sync/atomic"

	"github.com/smcgw/smcgw/rmb"
)

// SendRing is the send buffer: a byte ring with one producer, which fills it, and one owner, which posts what was
// produced and frees what has been sent. They may be different goroutines; neither waits for the other. Offsets are
// absolute. The zero ring has no room. The producer, or any goroutine, may call the exported methods; only the owner
// may call the others.
//
//	freed ≤ posted ≤ produced ≤ freed + size
type SendRing struct {
	buf []byte

	// Written only by the producer.
	produced atomic.Uint64
	head     int // index of the next byte to produce

	_ [64]byte // avoid false sharing: the halves are written by different processors

	// Written only by the owner.
	freed atomic.Uint64
	// posted is the offset after the last byte posted.
	posted uint64
	next   int // index of the next byte to post

	// held says why the owner leaves produced bytes unposted until a completion, which is sure to come.
	held atomic.Uint32
}

// batchBytes is the size from which a message is not small: fewer bytes are held back for coalescing while two small
// messages are in flight.
const batchBytes = 64 << 10

// Values of held.
const (
	heldNot     = iota
	heldSmall   // less than a batch is being coalesced
	heldBlocked // the stream has no window
)

// Size returns the length of the ring.
func (r *SendRing) Size() int { return len(r.buf) }

// ProducedTo returns the offset after the last byte produced.
func (r *SendRing) ProducedTo() uint64 { return r.produced.Load() }

// FreedTo returns the offset after the last byte freed.
func (r *SendRing) FreedTo() uint64 { return r.freed.Load() }

// init makes an empty ring over buf.
func (r *SendRing) init(buf []byte) { r.buf = slices.Clip(buf[:min(len(buf), rmb.MaxRing)]) }

// Free returns the number of bytes that may be produced.
func (r *SendRing) Free() int { return len(r.buf) - int(r.produced.Load()-r.freed.Load()) }

// Span returns the contiguous memory for the next bytes. Only the producer may call it.
func (r *SendRing) Span() []byte { return r.cut(r.head, r.Free()) }

// Produce publishes the first n bytes of the span; hand large amounts over in pieces, so that copying overlaps with
// sending. Only the producer may call it.
func (r *SendRing) Produce(n int) error {
	if n < 0 || n > r.Free() || n > len(r.buf)-r.head {
		return rmb.ErrOverrun
	}
	if r.head += n; r.head == len(r.buf) {
		r.head = 0
	}
	r.produced.Store(r.produced.Load() + uint64(n))
	return nil
}

// Wanting tells the producer whether the owner must be told about what was produced. It need not be while small messages
// are coalesced or the peer has no room: the completion that ends this state makes the owner call [Endpoint.Pump]
// anyway. No wake-up is lost: the owner clears held before it loads produced, so if Wanting still sees held set, the
// owner will see the bytes produced before.
func (r *SendRing) Wanting() bool {
	switch r.held.Load() {
	case heldBlocked:
		return false
	case heldSmall:
		return r.produced.Load()-r.freed.Load() >= batchBytes
	}
	return true
}

// unposted returns the number of bytes produced but not posted.
func (r *SendRing) unposted() int { return int(r.produced.Load() - r.posted) }

// pending returns the oldest bytes not posted, as far as they are contiguous.
func (r *SendRing) pending() []byte { return r.cut(r.next, r.unposted()) }

// post records that the first n bytes of pending were posted and returns their index in the buffer.
func (r *SendRing) post(n int) int {
	at := r.next
	if r.next += n; r.next >= len(r.buf) {
		r.next = 0
	}
	r.posted += uint64(n)
	return at
}

// freeTo frees everything before the absolute offset.
func (r *SendRing) freeTo(offset uint64) error {
	freed := r.freed.Load()
	if offset == freed {
		return nil
	}
	if offset < freed || offset > r.posted {
		return rmb.ErrUnderrun
	}
	r.freed.Store(offset)
	return nil
}

// at returns the longest contiguous run of posted, unfreed bytes from the absolute offset on.
func (r *SendRing) at(offset uint64) []byte {
	if offset < r.freed.Load() || offset >= r.posted {
		return nil
	}
	return r.cut(r.place(offset), int(r.posted-offset))
}

// detach copies the posted, unfreed bytes to memory of the ring's own, so that the original memory may be freed.
// Nothing may be produced or posted any more.
func (r *SendRing) detach() {
	own := make([]byte, len(r.buf))
	for offset := r.freed.Load(); offset < r.posted; {
		b := r.at(offset)
		copy(own[r.place(offset):], b)
		offset += uint64(len(b))
	}
	r.buf = own
}

// place returns the index in the buffer of a posted, unfreed byte.
func (r *SendRing) place(offset uint64) int {
	start := r.next - int(r.posted-offset)
	if start < 0 {
		start += len(r.buf)
	}
	return start
}

// cut returns up to n contiguous bytes, with the capacity limited to them.
func (r *SendRing) cut(start, n int) []byte {
	end := start + min(n, len(r.buf)-start)
	return r.buf[start:end:end]
}
