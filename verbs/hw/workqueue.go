package hw

import (
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/verbs"
	"github.com/smcgw/smcgw/verbs/hw/ibv"
)

// workQueue is the accounting of a send or a receive queue: the caller's id of each work request, and which entries are
// free. The library sees an entry's number, because the caller's ids may repeat. It belongs to the loop of its vector,
// before that to the creator of its queue pair.
//
// Requests of a queue pair complete in order, so its queue is a ring: entries from retired to posted are in use, and a
// completion frees all up to its own, including those without a completion.
type workQueue struct {
	slot   uint32 // in the device's table
	qp     *qp    // its queue pair
	send   bool
	limit  int                  // entries that may be in use
	ids    []uint64             // by entry
	ahs    []atomic.Pointer[ah] // by entry: address handles held by UD sends
	posted uint32               // count posted; modulo len(ids), a power of two, it is an entry
	done   uint32               // count freed

	batch *batch // batch of the last request, if it is not posted yet
	turn  uint64
	tail  int

	refusedAt uint32 // the entry that the provider refused
	refused   bool
	gone      atomic.Bool // the queue pair was closed outside of the loop: ignore its completions
}

// init makes the queue ready for limit entries.
func (w *workQueue) init(limit int) {
	w.limit = limit
	w.ids = make([]uint64, ceilPow2(limit))
}

func ceilPow2(n int) int {
	p := 1
	for p < n {
		p *= 2
	}
	return p
}

// used returns the number of entries in use.
func (w *workQueue) used() int { return int(w.posted - w.done) }

func (w *workQueue) full() bool { return w.used() >= w.limit }

// push takes an entry for a request of the caller and returns it. The queue must not be full.
func (w *workQueue) push(id uint64) (entry uint32) {
	entry = w.posted & uint32(len(w.ids)-1)
	w.posted++
	w.ids[entry] = id
	return entry
}

// wrid returns the work request id of an entry for the library.
func (w *workQueue) wrid(entry uint32) uint64 { return uint64(w.slot)<<32 | uint64(entry) }

// retire frees a completed entry of a ring, and all before it. An entry that is already free was posted before one that
// the provider refused, and completed after it: see repost.
func (w *workQueue) retire(entry uint32) {
	if n := (entry-w.done)&uint32(len(w.ids)-1) + 1; n <= w.posted-w.done {
		w.retireTo(w.done + n)
	}
}

// retireAll frees all entries in use, as a reset does.
func (w *workQueue) retireAll() {
	w.retireTo(w.posted)
	w.refused = false
}

func (w *workQueue) retireTo(count uint32) {
	if w.ahs != nil {
		for ; w.done != count; w.done++ {
			w.leaveHandle(w.done & uint32(len(w.ids)-1))
		}
	}
	w.done = count
}

// leaveHandle releases the address handle of an entry.
func (w *workQueue) leaveHandle(entry uint32) {
	if at := &w.ahs[entry]; at.Load() != nil {
		if a := at.Swap(nil); a != nil {
			a.unref()
		}
	}
}

// leave releases all address handles: the queue pair was closed outside of the loop, which may be taking completions
// now.
func (w *workQueue) leave() {
	for entry := range w.ahs {
		w.leaveHandle(uint32(entry))
	}
}

// batch is the work requests of a turn, to be passed to the library.
type batch struct {
	ibv.Batch
	turn uint64 // incremented with each flush
}

// batchRequests bounds a batch, so that the adapter need not wait for the end of a long turn.
const batchRequests = 256

func (b *batch) empty() bool { return len(b.Sends) == 0 && len(b.Recvs) == 0 }

func (b *batch) full() bool { return len(b.Sends) >= batchRequests || len(b.Recvs) >= batchRequests }

// tailOf returns the last request of a queue in the batch, or -1, and makes at the last.
func (b *batch) tailOf(w *workQueue, at int) int {
	tail := w.tail
	if w.batch != b || w.turn != b.turn {
		tail = -1
	}
	w.batch, w.turn, w.tail = b, b.turn, at
	return tail
}

// addSend appends a record, as the last of its queue's list.
func (b *batch) addSend(w *workQueue, s *ibv.Send) {
	at := len(b.Sends)
	s.Next, s.Err = -1, 0
	if tail := b.tailOf(w, at); tail < 0 {
		s.Flags |= ibv.FlagHead
	} else {
		s.Flags &^= ibv.FlagHead
		b.Sends[tail].Next = int32(at)
	}
	b.Sends = append(b.Sends, *s)
}

func (b *batch) addRecv(w *workQueue, r *ibv.Recv) {
	at := len(b.Recvs)
	r.Next, r.Err = -1, 0
	if tail := b.tailOf(w, at); tail < 0 {
		r.Flags |= ibv.FlagHead
	} else {
		r.Flags &^= ibv.FlagHead
		b.Recvs[tail].Next = int32(at)
	}
	b.Recvs = append(b.Recvs, *r)
}

func (b *batch) clear() {
	b.Sends, b.Recvs, b.SGEs, b.Inline = b.Sends[:0], b.Recvs[:0], b.SGEs[:0], b.Inline[:0]
	b.turn++
}

// flush posts the batch in one call, however many queues it has work for.
func (b *batch) flush(d *Device) {
	if b.empty() {
		return
	}
	d.posted.Add(uint64(len(b.Sends) + len(b.Recvs)))
	if d.ctx.Post(&b.Batch) > 0 {
		b.repost(d)
	}
	b.clear()
}

// repost handles requests that the provider refused, which PostSend could not report any more. Their queue pair goes to
// ERR. A refused request is posted again with nothing in it, so that it is flushed in order; its completion then says
// LOC_QP_OP_ERR. If the adapter does not move the queue pair to ERR, nothing is posted, because the peer could not
// detect the missing request.
func (b *batch) repost(d *Device) {
	again := batch{}
	again.SGEs, again.Inline = b.SGEs, b.Inline
	for i := range b.Sends {
		s := &b.Sends[i]
		if s.Err == 0 {
			continue
		}
		w := d.queueOf(s.WRID)
		if s.Err != int32(unix.ECANCELED) {
			w.refuse(d, entryOf(s.WRID), unix.Errno(s.Err))
			s.Count, s.Flags = 0, uint16(verbs.SendSignaled)
			if s.AH == 0 {
				s.Opcode = uint16(verbs.WRRDMAWrite)
			}
		}
		if w.qp.unmoved {
			w.flushed(entryOf(s.WRID))
			continue
		}
		again.addSend(w, s)
	}
	for i := range b.Recvs {
		r := &b.Recvs[i]
		if r.Err == 0 {
			continue
		}
		w := d.queueOf(r.WRID)
		if r.Err != int32(unix.ECANCELED) {
			w.refuse(d, entryOf(r.WRID), unix.Errno(r.Err))
			r.Count = 0
		}
		if w.qp.unmoved {
			w.flushed(entryOf(r.WRID))
			continue
		}
		again.addRecv(w, r)
	}
	if !again.empty() && d.ctx.Post(&again.Batch) > 0 {
		again.give(d)
	}
}

// give completes requests that the provider refuses even in ERR, as it does if the adapter is gone. Nothing else
// completes then.
func (b *batch) give(d *Device) {
	for i := range b.Sends {
		if s := &b.Sends[i]; s.Err != 0 {
			d.queueOf(s.WRID).flushed(entryOf(s.WRID))
		}
	}
	for i := range b.Recvs {
		if r := &b.Recvs[i]; r.Err != 0 {
			d.queueOf(r.WRID).flushed(entryOf(r.WRID))
		}
	}
}

func (d *Device) queueOf(wrid uint64) *workQueue { return d.queues.lookup(uint32(wrid >> 32)) }

func entryOf(wrid uint64) uint32 { return uint32(wrid) }

// refuse records an entry that the provider refused.
func (w *workQueue) refuse(d *Device, entry uint32, err error) {
	d.postErrors.Add(1)
	d.cfg.Logger.Warn("work request refused by the provider", "device", d.Name(), "qp", w.qp.num, "error", err)
	w.refused, w.refusedAt = true, entry
	w.qp.fail()
}

// flushed completes an entry that the library never took.
func (w *workQueue) flushed(entry uint32) {
	if !w.qp.poster.loop { // this goroutine does not own the completion queues
		return
	}
	c := w.qp.rcq
	if w.send {
		c = w.qp.scq
	}
	wc := verbs.WC{WRID: w.ids[entry], Status: w.status(entry, verbs.WCWRFlushErr), QPNum: w.qp.num}
	c.stash = append(c.stash, stashed{wc: wc, queue: w, entry: entry})
}

// status returns the status with which an entry completes: a refused one never succeeds.
func (w *workQueue) status(entry uint32, reported verbs.WCStatus) verbs.WCStatus {
	if w.refused && w.refusedAt == entry {
		return verbs.WCLocQPOpErr
	}
	return reported
}
