package gateway

import "sync"

// mailbox hands work to the one goroutine that owns something. It is bounded
// by its senders: each flow has a handful of things that can happen to it.
type mailbox struct {
	wake chan struct{}

	mu     sync.Mutex // guards everything below
	closed bool
	queue  []func()
}

func newMailbox() *mailbox { return &mailbox{wake: make(chan struct{}, 1)} }

// put queues fn; false means that the owner has left and fn will never run.
func (m *mailbox) put(fn func()) bool {
	m.mu.Lock()
	if m.closed {
		m.mu.Unlock()
		return false
	}
	m.queue = append(m.queue, fn)
	m.mu.Unlock()
	m.signal()
	return true
}

// signal wakes the owner without a message. It never blocks.
func (m *mailbox) signal() {
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

// take returns what is queued.
func (m *mailbox) take() []func() {
	m.mu.Lock()
	defer m.mu.Unlock()
	q := m.queue
	m.queue = nil
	return q
}

// close refuses further messages and returns those nobody took.
func (m *mailbox) close() []func() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed = true
	q := m.queue
	m.queue = nil
	return q
}
