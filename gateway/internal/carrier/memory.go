package carrier

import (
	"errors"
	"sync/atomic"

	"github.com/smcgw/smcgw/gateway/internal/loop"
	"github.com/smcgw/smcgw/rmb"
	"github.com/smcgw/smcgw/rsocket"
	"github.com/smcgw/smcgw/verbs"
)

// Memory is memory of a connection's own that a link uses instead of the pool's: the buffer
// it sends from, and the ring that its peer writes to. If a device cannot let the peer write
// there, the link uses a ring of the same size from the pool. The owner holds the memory, and
// so does each link made with it until no packet and no loop can reach it any more.
type Memory struct {
	send, ring []byte
	holders    atomic.Int32
	free       func()
}

// NewMemory returns memory held by the caller. free is called once, from any goroutine, when
// the caller and all links have released it.
func NewMemory(send, ring []byte, free func()) *Memory {
	m := &Memory{send: send, ring: ring, free: free}
	m.holders.Store(1)
	return m
}

// Hold adds a hold, for a caller that has a link made.
func (m *Memory) Hold() { m.holders.Add(1) }

// TryHold is Hold for a caller that does not hold the memory. It returns false if that is freed already.
func (m *Memory) TryHold() bool {
	for n := m.holders.Load(); n > 0; n = m.holders.Load() {
		if m.holders.CompareAndSwap(n, n+1) {
			return true
		}
	}
	return false
}

// Release ends the hold of a caller of NewMemory or Hold.
func (m *Memory) Release() {
	if m.holders.Add(-1) == 0 {
		m.free()
	}
}

// lend makes an endpoint use the memory. On failure nothing is held.
func (m *Memory) lend(shards []*loop.Shard, arena *rmb.Arena, cfg *rsocket.EndpointConfig) (err error) {
	if cfg.Send, err = m.borrow(shards, arena, m.send, 0); err != nil {
		return err
	}
	cfg.RingSize = len(m.ring)
	cfg.Ring, err = m.borrow(shards, arena, m.ring, rmb.Access)
	if err != nil && !errors.Is(err, verbs.ErrNotSupported) {
		return errors.Join(err, cfg.Send.Free())
	}
	return nil
}

// borrow registers a part of the memory and holds it until the region is freed. A loop may
// still be executing a packet that referred to it, so the hold is released only after every
// shard has passed a turn.
func (m *Memory) borrow(shards []*loop.Shard, arena *rmb.Arena, part []byte, access verbs.Access) (*rmb.Region, error) {
	m.holders.Add(1)
	r, err := arena.Borrow(part, access, func() {
		var turning atomic.Int32
		turning.Store(int32(len(shards)))
		for _, s := range shards {
			s.Post(func() {
				if turning.Add(-1) == 0 {
					m.Release()
				}
			})
		}
	})
	if err != nil {
		m.Release()
	}
	return r, err
}
