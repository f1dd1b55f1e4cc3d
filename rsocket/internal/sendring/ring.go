package sendring

import (
	"slices"
	"sync/atomic"

	"github.com/smcgw/smcgw/rmb"
)

// Ring is the send buffer: a byte ring with one producer, which fills it, and one owner, which posts what was
// produced and frees what has been sent. They may be different goroutines; neither waits for the other. Offsets are
// absolute. The zero ring has no room.
//
//	freed ≤ posted ≤ produced ≤ freed + size
type Ring struct {
	buf []byte

	// Written by the producer alone.
	produced atomic.Uint64
	head     int // where the next byte goes

	_ [64]byte // the halves are written by different processors

	// Written by the owner alone.
	freed atomic.Uint64
	// Posted is the offset after what was posted.
	Posted uint64
	next   int // where the next byte to post is

	// Held says why the owner leaves what was produced, until a completion that is sure to come.
	Held atomic.Uint32

	// Full says that the producer found no room and wants to be told: set by the producer, cleared by the owner.
	Full atomic.Bool
}

// BatchBytes is what is not a small message: less than this waits for company while two small messages are under way.
const BatchBytes = 64 << 10

// Values of Held.
const (
	HeldNot     = iota
	HeldSmall   // less than a batch gathers
	HeldBlocked // nothing can be sent
)

// Size returns the length of the ring.
func (r *Ring) Size() int { return len(r.buf) }

// ProducedTo returns the offset after what was produced.
func (r *Ring) ProducedTo() uint64 { return r.produced.Load() }

// FreedTo returns the offset after what was freed.
func (r *Ring) FreedTo() uint64 { return r.freed.Load() }

// Init makes an empty ring over buf.
func (r *Ring) Init(buf []byte) { r.buf = slices.Clip(buf[:min(len(buf), rmb.MaxRing)]) }

// Free returns the number of bytes that may be produced.
func (r *Ring) Free() int { return len(r.buf) - int(r.produced.Load()-r.freed.Load()) }

// Span returns the contiguous memory for the next bytes, for the producer.
func (r *Ring) Span() []byte { return r.cut(r.head, r.Free()) }

// Produce publishes the first n bytes of the span, for the producer.
func (r *Ring) Produce(n int) error {
	if n < 0 || n > r.Free() || n > len(r.buf)-r.head {
		return rmb.ErrOverrun
	}
	if r.head += n; r.head == len(r.buf) {
		r.head = 0
	}
	r.produced.Store(r.produced.Load() + uint64(n))
	return nil
}

// Wanting tells the producer whether what it produced needs the owner's attention. The holder looks at produced again
// after it has let go, so it sees what was produced before Wanting saw Held.
func (r *Ring) Wanting() bool {
	switch r.Held.Load() {
	case HeldBlocked:
		return false
	case HeldSmall:
		return r.produced.Load()-r.freed.Load() >= BatchBytes
	}
	return true
}

// Unposted returns the number of bytes produced and not posted, for the owner.
func (r *Ring) Unposted() int { return int(r.produced.Load() - r.Posted) }

// Pending returns the oldest bytes not posted as far as they are contiguous, for the owner.
func (r *Ring) Pending() []byte { return r.cut(r.next, r.Unposted()) }

// Post records that the first n bytes of pending were posted and returns where in the buffer they are.
func (r *Ring) Post(n int) int {
	at := r.next
	if r.next += n; r.next >= len(r.buf) {
		r.next = 0
	}
	r.Posted += uint64(n)
	return at
}

// FreeTo frees everything before the absolute offset, for the owner, and reports whether the producer waits for it.
func (r *Ring) FreeTo(offset uint64) (awaited bool, err error) {
	freed := r.freed.Load()
	if offset == freed {
		return false, nil
	}
	if offset < freed || offset > r.Posted {
		return false, rmb.ErrUnderrun
	}
	r.freed.Store(offset)
	return r.Full.Load() && r.Full.CompareAndSwap(true, false), nil
}

// At returns the longest contiguous run of posted, unfreed bytes from the absolute offset on, for the owner.
func (r *Ring) At(offset uint64) []byte {
	if offset < r.freed.Load() || offset >= r.Posted {
		return nil
	}
	return r.cut(r.place(offset), int(r.Posted-offset))
}

// Detach copies the posted, unfreed bytes to memory of the ring's own: what it was made over is free. Nothing may be
// produced or posted any more.
func (r *Ring) Detach() {
	own := make([]byte, len(r.buf))
	for offset := r.freed.Load(); offset < r.Posted; {
		b := r.At(offset)
		copy(own[r.place(offset):], b)
		offset += uint64(len(b))
	}
	r.buf = own
}

// place is where in the buffer a posted, unfreed byte is.
func (r *Ring) place(offset uint64) int {
	start := r.next - int(r.Posted-offset)
	if start < 0 {
		start += len(r.buf)
	}
	return start
}

// cut returns up to n contiguous bytes; its capacity ends there too.
func (r *Ring) cut(start, n int) []byte {
	end := start + min(n, len(r.buf)-start)
	return r.buf[start:end:end]
}
