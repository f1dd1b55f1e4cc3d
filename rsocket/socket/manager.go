package socket

import (
	"context"
	"fmt"
	"net/netip"
	"syscall"

	"github.com/smcgw/smcgw/rsocket/cm"
	"github.com/smcgw/smcgw/rsocket/cm/kernel"
	"github.com/smcgw/smcgw/verbs"
)

// connManager is a communication manager: that of package cm on a device with queue pair 1, otherwise the kernel's. It
// knows nothing of streams: the private data that the two ends exchange while they connect is opaque. The trap: a
// request that is neither accepted nor refused occupies its place until the manager gives it up.
type connManager interface {
	// Dial connects a queue pair.
	Dial(ctx context.Context, p cm.DialParams) (cm.Conn, error)
	// Listen accepts requests for a port; port 0 chooses one.
	Listen(local netip.AddrPort, cfg cm.ListenConfig) (cm.Listener, error)
	// Close ends everything that the manager made.
	Close() error
}

// openManager opens the manager that fits the device. If the kernel's cannot be opened, the stack has none and serves
// only datagrams.
func (s *Stack) openManager() error {
	if len(s.dev.Port().GIDs) == 0 {
		return nil
	}
	if s.dev.Attr().Ops&verbs.OpGSI == 0 {
		m, err := kernel.New(s.dev)
		if s.noManager = err; err == nil {
			s.manager = m
		}
		return nil
	}
	c := s.cfg.CM
	c.Do, c.Vector = s.vectors[0].Do, 0
	m, err := cm.New(s.dev, c)
	if err == nil {
		s.manager = m
	}
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
