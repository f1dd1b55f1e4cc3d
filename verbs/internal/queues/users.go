package queues

import (
	"fmt"
	"sync"

	"github.com/smcgw/smcgw/verbs"
)

// Users counts what keeps an object open: the regions, queue pairs, shared receive queues and address handles of a
// domain, or the queue pairs of a completion queue. The zero value is an open object without users.
type Users struct {
	mu     sync.Mutex // guards everything below
	n      int
	closed bool
}

// Hold counts a user. Call it before making the user, and Release when the user is closed. It fails after Close.
func (u *Users) Hold() error {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.closed {
		return verbs.ErrClosed
	}
	u.n++
	return nil
}

// Release ends a Hold.
func (u *Users) Release() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.n--
}

// Close closes the object once, by calling free. It fails with verbs.ErrBusy if there are users; if free fails, the
// object stays open.
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
