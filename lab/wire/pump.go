package wire

import (
	"sync"
	"time"

	"github.com/smcgw/smcgw/internal/due"
)

// pumpLimit bounds the packets waiting in a pump. Like a real link, a pump drops the rest.
const pumpLimit = 8192

// pump delivers packets on one goroutine, each when it is due, and in the order of their due times.
type pump struct {
	deliver PacketFunc
	wake    chan struct{}
	quit    chan struct{}
	done    chan struct{}
	begin   time.Time
	once    sync.Once

	mu sync.Mutex        // guards everything below
	q  due.Queue[[]byte] // by the time since begin
}

func newPump(deliver PacketFunc) *pump {
	p := &pump{
		deliver: deliver,
		wake:    make(chan struct{}, 1),
		quit:    make(chan struct{}),
		done:    make(chan struct{}),
		begin:   time.Now(),
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
	if p.q.Len() >= pumpLimit {
		return false
	}
	p.q.Push(time.Since(p.begin)+d, pkt)
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
	at, ok := p.q.Next()
	if !ok {
		return nil, -1
	}
	if wait = at - time.Since(p.begin); wait > 0 {
		return nil, wait
	}
	return p.q.Pop(), 0
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
