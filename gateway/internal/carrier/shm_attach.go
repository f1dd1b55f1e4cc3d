package carrier

import (
	"context"
	"fmt"
	"net/netip"
)

// shmCall is an offer that some flows of an address are attaching to.
type shmCall struct {
	of    netip.Addr
	flows int
}

// Attach attaches to an offer that was made to an address, and returns its peer.
func (t *shmTable) Attach(ctx context.Context, of netip.Addr, name string, key [16]byte) (*ShmPeer, error) {
	if err := t.call(of, key); err != nil {
		return nil, err
	}
	defer t.called(key)
	peer, err := t.shm.Attach(ctx, name, key)
	if err != nil {
		return nil, fmt.Errorf("shm attach: %w", err)
	}
	return t.adopt(peer, of, false), nil
}

// call begins attaching to an offer; called ends it. Concurrent flows with the same offer
// count as one peer.
func (t *shmTable) call(of netip.Addr, key [16]byte) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	c := t.calls[key]
	if c == nil {
		if t.knownLocked(key) == nil { // another flow may have attached meanwhile
			if err := t.admitLocked(of); err != nil {
				return err
			}
		}
		c = &shmCall{of: of}
		t.calls[key] = c
	}
	c.flows++
	return nil
}

func (t *shmTable) called(key [16]byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	c := t.calls[key]
	if c.flows--; c.flows == 0 {
		delete(t.calls, key)
	}
}
