package hw

import (
	"sync"
	"sync/atomic"

	"github.com/smcgw/smcgw/verbs"
)

// The maximum number of work queues of a device, in pages that are allocated when needed.
const (
	pageQueues = 1 << 10
	maxPages   = 1 << 9
)

// queueTable maps numbers to work queues: the upper half of the work request id that the library sees. Loops read it
// without a lock while other goroutines create queues.
type queueTable struct {
	pages [maxPages]atomic.Pointer[queuePage]

	mu   sync.Mutex // guards everything below
	used uint32     // numbers ever assigned
	free []uint32
}

type queuePage [pageQueues]atomic.Pointer[workQueue]

// add assigns numbers to queues, to all or none.
func (t *queueTable) add(queues ...*workQueue) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.free)+pageQueues*maxPages-int(t.used) < len(queues) {
		return verbs.ErrNoMemory
	}
	for _, w := range queues {
		if n := len(t.free); n > 0 {
			w.slot, t.free = t.free[n-1], t.free[:n-1]
		} else {
			if t.used%pageQueues == 0 {
				t.pages[t.used/pageQueues].Store(new(queuePage))
			}
			w.slot = t.used
			t.used++
		}
		t.at(w.slot).Store(w)
	}
	return nil
}

// remove frees the number of a queue that can have no more completions.
func (t *queueTable) remove(w *workQueue) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.at(w.slot).Store(nil)
	t.free = append(t.free, w.slot)
}

func (t *queueTable) at(slot uint32) *atomic.Pointer[workQueue] {
	return &t.pages[slot/pageQueues].Load()[slot%pageQueues]
}

// lookup returns the queue with that number, or nil.
func (t *queueTable) lookup(slot uint32) *workQueue {
	if slot >= pageQueues*maxPages {
		return nil
	}
	page := t.pages[slot/pageQueues].Load()
	if page == nil {
		return nil
	}
	return page[slot%pageQueues].Load()
}

// objects maps numbers to the objects of events. Numbers are never reused, so an event in flight when its object was
// closed finds nothing.
type objects struct {
	mu   sync.Mutex // guards everything below
	last uint64
	byID map[uint64]any
}

// add assigns a number to an object.
func (o *objects) add(obj any) uint64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.byID == nil {
		o.byID = map[uint64]any{}
	}
	o.last++
	o.byID[o.last] = obj
	return o.last
}

func (o *objects) remove(id uint64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.byID, id)
}

func (o *objects) find(id uint64) any {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.byID[id]
}
