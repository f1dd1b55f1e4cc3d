package socket

import (
	"fmt"
	"syscall"

	"github.com/smcgw/smcgw/verbs"
)

// openManager opens the manager that fits the device. If the kernel's cannot be opened, the stack has none and serves
// only datagrams.
func (s *Stack) openManager() (err error) {
	if len(s.dev.Port().GIDs) == 0 {
		return nil
	}
	if s.dev.Attr().Ops&verbs.OpGSI == 0 {
		s.manager, s.noManager = newKernelManager(s.dev)
		return nil
	}
	c := s.cfg.CM
	c.Do, c.Vector = s.vectors[0].Do, 0
	s.manager, err = newManager(s.dev, c)
	return err
}

// managed returns the manager, or why there is none.
func (s *Stack) managed() (connManager, error) {
	switch {
	case s.manager != nil:
		return s.manager, nil
	case s.noManager != nil:
		return nil, fmt.Errorf("%w: %w", ErrNoManager, s.noManager)
	default:
		return nil, ErrNoManager
	}
}

// ErrNoManager is a Dial or Listen on a stack without a communication manager.
var ErrNoManager = fmt.Errorf("no communication manager: %w", syscall.EOPNOTSUPP)
