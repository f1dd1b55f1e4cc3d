package gateway

import (
	"errors"
	"fmt"
	"net"
	"sync"

	"golang.org/x/sys/unix"
)

// Sockets of a legPool: as many as one request makes, asked for when half are left.
const (
	legBatch = 32
	legLow   = legBatch / 2
)

// legPool keeps sockets of one family ready. They are made by another process, for
// which a loop must not wait. It is safe for concurrent use.
type legPool struct {
	make func(count int) ([]int, error)

	mu      sync.Mutex
	ready   []int
	waiting []func(fd int, err error) // as many as dials are under way
	filling bool
	closed  bool
}

// take has use called with a socket, which is then the callee's: at once, or on a
// goroutine when one has been made.
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

// fill makes sockets until nobody waits and enough are ready, or none can be made.
func (p *legPool) fill() {
	for {
		fds, err := p.make(legBatch)
		for i, fd := range fds {
			fds[i], _ = aboveFloor(fd) // below is better than nowhere
		}
		p.mu.Lock()
		waiting := p.waiting
		if err == nil && len(fds) > 0 {
			n := min(len(fds), len(p.waiting))
			waiting, p.waiting = p.waiting[:n:n], p.waiting[n:]
		} else {
			p.waiting = nil
		}
		spare := fds[min(len(fds), len(waiting)):]
		if p.closed {
			closeFDs(spare)
		} else {
			p.ready = append(p.ready, spare...)
		}
		p.filling = err == nil && !p.closed && (len(p.waiting) > 0 || len(p.ready) < legLow)
		more := p.filling
		p.mu.Unlock()
		for i, use := range waiting {
			if err != nil {
				use(-1, err)
				continue
			}
			use(fds[i], nil)
		}
		if !more {
			return
		}
	}
}

// close closes what is ready; what is made from then on is closed too.
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
