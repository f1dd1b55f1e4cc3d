package verbs

import (
	"context"
	"sync"
)

// EventType is the kind of an asynchronous event (enum ibv_event_type, same numbers).
type EventType uint8

// The asynchronous events.
const (
	EventCQErr       EventType = iota // completions were lost
	EventQPFatal                      // an error moved the queue pair to ERR
	EventQPReqErr                     // the peer sent an invalid request
	EventQPAccessErr                  // the peer sent a request that violates access rights
	EventCommEst                      // the first packet arrived in RTR
	EventSQDrained
	EventPathMig
	EventPathMigErr
	EventDeviceFatal
	EventPortActive
	EventPortErr
	EventLIDChange
	EventPKeyChange
	EventSMChange
	EventSRQErr
	EventSRQLimitReached
	EventQPLastWQEReached
	EventClientReregister
	EventGIDChange
)

var eventTypeNames = [...]string{
	"CQ_ERR", "QP_FATAL", "QP_REQ_ERR", "QP_ACCESS_ERR", "COMM_EST", "SQ_DRAINED", "PATH_MIG", "PATH_MIG_ERR",
	"DEVICE_FATAL", "PORT_ACTIVE", "PORT_ERR", "LID_CHANGE", "PKEY_CHANGE", "SM_CHANGE", "SRQ_ERR",
	"SRQ_LIMIT_REACHED", "QP_LAST_WQE_REACHED", "CLIENT_REREGISTER", "GID_CHANGE",
}

// String returns the standard name of the event.
func (e EventType) String() string { return nameOf(eventTypeNames[:], int(e), "EVENT") }

// AsyncEvent is an event of an object that no work request caused (struct ibv_async_event). Only the field of the
// object that Type concerns is set. That object may have been closed meanwhile.
type AsyncEvent struct {
	Type EventType
	CQ   CQ
	QP   QP
}

// AsyncChannel carries the asynchronous events of a device. It is bounded: each type is pending at most once per
// object, and events of queue pairs are dropped while 1024 events are pending. Events of the
// device, its port and its completion queues are few and never dropped. Any goroutine may call its methods.
type AsyncChannel struct {
	wake chan struct{}

	mu      sync.Mutex // guards everything below
	events  []AsyncEvent
	pending map[AsyncEvent]struct{}
}

// asyncLimit is the number of pending events from which those of queue pairs are dropped.
const asyncLimit = 1024

// NewAsyncChannel makes an empty channel.
func NewAsyncChannel() *AsyncChannel {
	return &AsyncChannel{wake: make(chan struct{}, 1), pending: map[AsyncEvent]struct{}{}}
}

// Notify adds an event without blocking; devices call it. A pending event is not added again. If the channel is full,
// an event of a queue pair is dropped.
func (c *AsyncChannel) Notify(e AsyncEvent) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, ok := c.pending[e]; ok {
		return
	}
	if len(c.events) >= asyncLimit && e.QP != nil {
		return
	}
	c.pending[e] = struct{}{}
	c.events = append(c.events, e)
	c.signal()
}

// Get waits for the next event (ibv_get_async_event). The error is the cause of ctx's end.
func (c *AsyncChannel) Get(ctx context.Context) (AsyncEvent, error) {
	for {
		if e, ok := c.Poll(); ok {
			return e, nil
		}
		select {
		case <-c.wake:
		case <-ctx.Done():
			return AsyncEvent{}, context.Cause(ctx)
		}
	}
}

// Poll returns the next event if there is one.
func (c *AsyncChannel) Poll() (AsyncEvent, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.events) == 0 {
		return AsyncEvent{}, false
	}
	e := c.events[0]
	c.events = append(c.events[:0], c.events[1:]...)
	delete(c.pending, e)
	if len(c.events) > 0 {
		c.signal()
	}
	return e, true
}

func (c *AsyncChannel) signal() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}
