package hw

import (
	"sync"
	"sync/atomic"
)

// graves are the work queues of queue pairs that were closed beside the loop. Their
// completions may wait in the completion queue, so they keep their numbers until the
// loop has found that empty.
type graves struct {
	n atomic.Int32 // of list, to be read without the lock

	mu   sync.Mutex // guards everything below
	list []*workQueue
}

// put adds a queue. Nothing is added to its completions any more.
func (g *graves) put(w *workQueue) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.list = append(g.list, w)
	g.n.Add(1)
}

// len is how many queues there are.
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
