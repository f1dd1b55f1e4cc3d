package verbs

import (
	"context"
	"slices"
	"sync"
)

// CompChannel carries the events of armed completion queues to a goroutine that waits for them (struct
// ibv_comp_channel). Any goroutine may call its methods. It holds at most one event per CQ: an armed CQ fires once.
type CompChannel struct {
	wake chan struct{}

	mu     sync.Mutex // guards everything below
	events []CQ
}

// NewCompChannel makes an empty channel.
func NewCompChannel() *CompChannel { return &CompChannel{wake: make(chan struct{}, 1)} }

// Notify adds the event of cq without blocking; devices call it.
func (c *CompChannel) Notify(cq CQ) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if slices.Contains(c.events, cq) {
		return
	}
	c.events = append(c.events, cq)
	c.signal()
}

// Get waits for the next event (ibv_get_cq_event). The error is the cause of ctx's end. Only the loop of its vector may
// use the CQ itself.
func (c *CompChannel) Get(ctx context.Context) (CQ, error) {
	for {
		if cq := c.take(); cq != nil {
			return cq, nil
		}
		select {
		case <-c.wake:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

func (c *CompChannel) take() CQ {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.events) == 0 {
		return nil
	}
	cq := c.events[0]
	c.events = append(c.events[:0], c.events[1:]...)
	if len(c.events) > 0 {
		c.signal()
	}
	return cq
}

func (c *CompChannel) signal() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}
