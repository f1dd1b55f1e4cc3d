package e2e

import (
	"fmt"
	"sync"
	"testing"

	"github.com/smcgw/smcgw/lab/apps"
)

// tally counts what applications saw in a test with faults. Every such test logs its tally last. It is safe for
// concurrent use.
type tally struct {
	mu                          sync.Mutex
	flows, bytes, errors, fault int64
}

// newTally returns a tally that is logged when the test ends.
func newTally(t *testing.T) *tally {
	c := &tally{}
	t.Cleanup(func() { t.Log(c) })
	return c
}

// add counts flows with the payload bytes they moved and the errors their
// applications saw.
func (c *tally) add(flows, bytes, errors int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.flows, c.bytes, c.errors = c.flows+flows, c.bytes+bytes, c.errors+errors
}

// result counts the result of a client app.
func (c *tally) result(e apps.Event) {
	c.add(int64(e.OK+e.Failed), e.Sent+e.Received, int64(e.Failed))
}

// faults counts injected faults.
func (c *tally) faults(n int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.fault += n
}

// failed returns the number of errors so far.
func (c *tally) failed() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.errors
}

// String returns flows=N bytes=N faults=N errors=N.
func (c *tally) String() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return fmt.Sprintf("flows=%d bytes=%d faults=%d errors=%d", c.flows, c.bytes, c.fault, c.errors)
}
