package legs

import (
	"errors"
	"fmt"
	"net"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/gateway/process"
)

// legLow is the number of ready sockets below which a pool is refilled.
const legLow = process.LegBatch / 2

// legPool keeps sockets of one family ready. Another process makes them, which a loop must not wait for. It is safe for
// concurrent use.
type legPool struct {
	make func(count int) ([]int, error)

	mu      sync.Mutex
	ready   []int
	waiting []func(fd int, err error) // bounded by the dials in progress
	filling bool
	closed  bool
}

// take calls use with a socket, which use then owns: immediately if one is ready, else in another goroutine once one
// has been made.
func (p *legPool) take(use func(fd int, err error)) {
	p.mu.Lock()
	fd := -1
	if n := len(p.ready); n > 0 {
		fd, p.ready = p.ready[n-1], p.ready[:n-1]
	} else if !p.closed {
		p.waiting = append(p.waiting, use)
	}
	if !p.closed && !p.filling && len(p.ready) < legLow {
		p.filling = true
		go p.fill()
	}
	closed := p.closed
	p.mu.Unlock()
	switch {
	case fd >= 0:
		use(fd, nil)
	case closed:
		use(-1, fmt.Errorf("sockets of legs: %w", net.ErrClosed))
	}
}

// fill makes sockets until no caller waits and enough are ready, or until making fails.
func (p *legPool) fill() {
	for more := true; more; {
		fds, err := p.make(process.LegBatch)
		if err == nil && len(fds) == 0 {
			err = errNoSocket
		}
		for i, fd := range fds {
			fds[i], _ = process.AboveFloor(fd) // on failure the low descriptor must do
		}
		var served []func(fd int, err error)
		served, more = p.deal(fds, err)
		for i, use := range served {
			if err != nil {
				use(-1, err)
				continue
			}
			use(fds[i], nil)
		}
	}
}

var errNoSocket = errors.New("no socket for a leg")

// deal assigns the first of the new sockets to the callers that wait, keeps the rest, and reports whether more are
// wanted. If err is not nil, all waiting callers are to be told it.
func (p *legPool) deal(fds []int, err error) (served []func(fd int, err error), more bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := len(p.waiting)
	if err == nil {
		n = min(n, len(fds))
	}
	served, p.waiting = p.waiting[:n:n], p.waiting[n:]
	spare := fds[min(len(fds), n):]
	if p.closed {
		_ = closeFDs(spare)
	} else {
		p.ready = append(p.ready, spare...)
	}
	p.filling = err == nil && !p.closed && (len(p.waiting) > 0 || len(p.ready) < legLow)
	return served, p.filling
}

// close closes the ready sockets. Sockets made later are closed, too, unless a caller waits for them.
func (p *legPool) close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	err := closeFDs(p.ready)
	p.ready = nil
	return err
}

func closeFDs(fds []int) error {
	var errs []error
	for _, fd := range fds {
		errs = append(errs, unix.Close(fd))
	}
	return errors.Join(errs...)
}
