package hw

import (
	"sync"
	"sync/atomic"
)

// graves holds the work queues of queue pairs that were closed outside of the loop. Their completions may still be in
// the completion queue, so they keep their numbers until the loop has found that empty.
type graves struct {
	n atomic.Int32 // length of list, readable without the lock

	mu   sync.Mutex // guards everything below
	list []*workQueue
}

// put adds a queue that can have no further completions.
func (g *graves) put(w *workQueue) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.list = append(g.list, w)
	g.n.Add(1)
}

// len returns the number of queues.
func (g *graves) len() int { return int(g.n.Load()) }

// free returns the numbers of the n oldest queues.
func (g *graves) free(d *Device, n int) {
	if n == 0 {
		return
	}
	g.mu.Lock()
	dead := g.list[:n:n]
	g.list = append([]*workQueue(nil), g.list[n:]...)
	g.n.Add(int32(-n))
	g.mu.Unlock()
	for _, w := range dead {
		d.queues.remove(w)
	}
}
