package socket

import (
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
)

// maxAsync bounds the asynchronous writes of a connection that wait.
const maxAsync = 1024

// ErrAsyncFull is an asynchronous write too many.
var ErrAsyncFull = fmt.Errorf("too many asynchronous writes: %w", syscall.ENOBUFS)

// asyncWrites are the asynchronous writes of a connection, in order. A goroutine writes them while there are any; other
// writers that come meanwhile write them first.
type asyncWrites struct {
	busy atomic.Bool // there are some

	reports sync.Mutex // held while callbacks run

	mu   sync.Mutex // guards everything below
	list []asyncWrite
	over []asyncWrite // done is to be called
}

// asyncKind is what an entry of the list is.
type asyncKind uint8

const (
	asyncBytes asyncKind = iota
	asyncEnd             // of the direction
)

type asyncWrite struct {
	kind asyncKind
	p    []byte
	done func(n int, err error)
	n    int
	err  error
}

// WriteAsync writes p without waiting for room. p belongs to the connection until done is called, once, with what Write
// would have returned. done runs in a goroutine of the connection, one after the other and in order; it may use the
// connection. What is written afterwards, by whatever method, goes after p. Close ends what has not been written by
// then.
func (c *Conn) WriteAsync(p []byte, done func(n int, err error)) error {
	if c.closed.Load() {
		return c.fault("write", net.ErrClosed)
	}
	a := &c.async
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.list)+len(a.over) >= maxAsync {
		return c.fault("write", ErrAsyncFull)
	}
	a.list = append(a.list, asyncWrite{p: p, done: done})
	if !a.busy.Load() {
		a.busy.Store(true)
		go c.writeQueued()
	}
	return nil
}

// end puts the end of the direction after the asynchronous writes, false if there are none.
func (a *asyncWrites) end() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.busy.Load() {
		return false
	}
	if n := len(a.list); n == 0 || a.list[n-1].kind != asyncEnd {
		a.list = append(a.list, asyncWrite{kind: asyncEnd})
	}
	return true
}

// writeQueued writes until nothing is left.
func (c *Conn) writeQueued() {
	for more := true; more; more = c.async.more() {
		c.tx.mu.Lock()
		c.writeNext()
		c.unlockWrite()
		c.reportQueued()
	}
}

// more tells whether there is something to write; if not, the next write needs a new goroutine.
func (a *asyncWrites) more() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	more := len(a.list) > 0
	a.busy.Store(more)
	return more
}

// reportQueued tells the callers about their writes that are over.
func (c *Conn) reportQueued() {
	a := &c.async
	a.reports.Lock()
	defer a.reports.Unlock()
	a.mu.Lock()
	over := a.over
	a.over = nil
	a.mu.Unlock()
	for i := range over {
		over[i].done(over[i].n, c.fault("write", over[i].err))
	}
}

// writeNext writes the first of the asynchronous writes, if there is one. The caller holds tx.mu, so the order is
// that of the list.
func (c *Conn) writeNext() {
	a := &c.async
	a.mu.Lock()
	if len(a.list) == 0 {
		a.mu.Unlock()
		return
	}
	w := a.list[0]
	a.list[0] = asyncWrite{}
	a.list = a.list[1:]
	a.mu.Unlock()
	if w.kind == asyncEnd {
		c.tx.shut.Store(true)
		return
	}
	w.n, w.err = c.tx.write(w.p)
	a.mu.Lock()
	a.over = append(a.over, w)
	a.mu.Unlock()
}

// lockWrite begins a write, after all asynchronous ones that there are.
func (c *Conn) lockWrite() {
	c.tx.mu.Lock()
	if !c.async.busy.Load() {
		return
	}
	c.async.mu.Lock()
	n := len(c.async.list)
	c.async.mu.Unlock()
	if n == 0 {
		return
	}
	for range n {
		c.writeNext()
	}
	go c.reportQueued() // what follows may take its time
}
