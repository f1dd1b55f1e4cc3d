package queues

import (
	"fmt"
	"sync"

	"github.com/smcgw/smcgw/verbs"
)

// Users are what keeps an object open: the regions, queue pairs, shared receive queues and
// address handles of a domain, or the queue pairs of a completion queue. The zero value is an
// open object without any.
type Users struct {
	mu     sync.Mutex // guards everything below
	n      int
	closed bool
}

// Hold is called before a user is made, Release when that is closed.
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

// Close ends the object by free, once. One with users is busy, and one that cannot be freed
// stays open.
func (u *Users) Close(free func() error) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	switch {
	case u.n > 0:
		return fmt.Errorf("in use by %d objects: %w", u.n, verbs.ErrBusy)
	case u.closed:
		return nil
	}
	if err := free(); err != nil {
		return err
	}
	u.closed = true
	return nil
}
