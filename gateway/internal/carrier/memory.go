package carrier

import (
	"errors"
	"sync/atomic"

	"github.com/smcgw/smcgw/gateway/internal/loop"
	"github.com/smcgw/smcgw/rmb"
	"github.com/smcgw/smcgw/rsocket"
	"github.com/smcgw/smcgw/verbs"
)

// Memory is a connection's own, which a link has instead of that of the pool: what it sends from, and the ring that its
// peer writes to. Where a device cannot let the peer write there, the link has a ring of the pool, as large. Its owner
// holds it, and each link that was made with it until no packet and no loop finds it any more.
type Memory struct {
	send, ring []byte
	holders    atomic.Int32
	free       func()
}

// NewMemory returns memory that its caller holds. free is called once when that and all links have let it go, by any
// goroutine.
func NewMemory(send, ring []byte, free func()) *Memory {
	m := &Memory{send: send, ring: ring, free: free}
	m.holders.Store(1)
	return m
}

// Hold is for those who have a link made: its caller holds the memory, too.
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

// lend has an endpoint use the memory. On failure it is as it was.
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

// borrow registers a part of the memory for as long as it is not freed. A loop may execute a packet then that had named
// it before: each has to pass a turn.
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
