package wire

import (
	"container/heap"
	"sync"
	"time"
)

// pumpLimit bounds the packets waiting in a pump. Like a real link, a pump drops the rest.
const pumpLimit = 8192

// pump delivers packets on one goroutine, each when it is due, and in the order of their due times.
type pump struct {
	deliver PacketFunc
	wake    chan struct{}
	quit    chan struct{}
	done    chan struct{}
	once    sync.Once

	mu  sync.Mutex // guards everything below
	q   dueHeap
	seq uint64
}

type duePacket struct {
	due time.Time
	seq uint64
	pkt []byte
}

func newPump(deliver PacketFunc) *pump {
	p := &pump{
		deliver: deliver,
		wake:    make(chan struct{}, 1),
		quit:    make(chan struct{}),
		done:    make(chan struct{}),
	}
	go p.run()
	return p
}

// push queues pkt for delivery after d. It returns false if the pump is full or closed.
func (p *pump) push(pkt []byte, d time.Duration) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.quit:
		return false
	default:
	}
	if len(p.q) >= pumpLimit {
		return false
	}
	p.seq++
	heap.Push(&p.q, duePacket{due: time.Now().Add(d), seq: p.seq, pkt: pkt})
	select {
	case p.wake <- struct{}{}:
	default:
	}
	return true
}

// next returns the packet that is due, or how long to wait; wait < 0 means forever.
func (p *pump) next() (pkt []byte, wait time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.q) == 0 {
		return nil, -1
	}
	if wait = time.Until(p.q[0].due); wait > 0 {
		return nil, wait
	}
	return heap.Pop(&p.q).(duePacket).pkt, 0
}

func (p *pump) run() {
	defer close(p.done)
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		pkt, wait := p.next()
		if pkt != nil {
			p.deliver(pkt)
			continue
		}
		select { // deliver what is due before ending
		case <-p.quit:
			return
		default:
		}
		if wait < 0 {
			wait = time.Hour
		}
		timer.Reset(wait)
		select {
		case <-p.wake:
		case <-timer.C:
		case <-p.quit:
		}
	}
}

// close delivers what is due and waits for the goroutine.
func (p *pump) close() {
	p.once.Do(func() {
		p.mu.Lock()
		close(p.quit)
		p.mu.Unlock()
	})
	<-p.done
}

// dueHeap implements heap.Interface.
type dueHeap []duePacket

func (h dueHeap) Len() int { return len(h) }
func (h dueHeap) Less(i, j int) bool {
	if !h[i].due.Equal(h[j].due) {
		return h[i].due.Before(h[j].due)
	}
	return h[i].seq < h[j].seq
}
func (h dueHeap) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *dueHeap) Push(x any)   { *h = append(*h, x.(duePacket)) }
func (h *dueHeap) Pop() any {
	old := *h
	x := old[len(old)-1]
	old[len(old)-1] = duePacket{}
	*h = old[:len(old)-1]
	return x
}
