package domain

import (
	"fmt"
	"sync"

	"github.com/smcgw/smcgw/verbs"
)

// Users are the regions, queue pairs, shared receive queues and address handles of a
// domain. The zero value is an open domain without any.
type Users struct {
	mu     sync.Mutex // guards everything below
	n      int
	closed bool
}

// Hold is called before something is made in the domain, Release when that is closed.
func (u *Users) Hold() error {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.closed {
		return verbs.ErrClosed
	}
	u.n++
	return nil
}

// Release is the end of what Hold was called for.
func (u *Users) Release() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.n--
}

// Close ends the domain by free, once. A domain with something in it is busy, and one that
// cannot be freed stays open.
func (u *Users) Close(free func() error) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	switch {
	case u.n > 0:
		return fmt.Errorf("protection domain of %d objects: %w", u.n, verbs.ErrBusy)
	case u.closed:
		return nil
	}
	if err := free(); err != nil {
		return err
	}
	u.closed = true
	return nil
}
