package queues

import (
	"fmt"

	"github.com/smcgw/smcgw/verbs"
)

// Limits bound the work queues of a device.
type Limits struct {
	WR     int // work requests of a queue
	SGE    int // elements of a scatter or gather list
	Inline int // bytes of inline data
}

// Check reports whether a queue pair can have these capabilities.
func (l Limits) Check(c verbs.QPCap) error {
	in := func(n, limit int) bool { return n >= 0 && n <= limit }
	if c.MaxSendWR < 1 || !in(c.MaxSendWR, l.WR) || !in(c.MaxRecvWR, l.WR) ||
		!in(c.MaxSendSGE, l.SGE) || !in(c.MaxRecvSGE, l.SGE) || !in(c.MaxInline, l.Inline) {
		return fmt.Errorf("queue pair capabilities %+v: %w", c, verbs.ErrInvalid)
	}
	return nil
}
