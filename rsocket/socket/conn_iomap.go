package socket

import (
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"

	"github.com/smcgw/smcgw/rmb"
	"github.com/smcgw/smcgw/rsocket"
)

// IOMap is memory of ours that the peer places bytes into with [Conn.WriteAt] (riomap and riowrite of rdma-core). Its
// owner is not notified of writes: programs must arrange that themselves, for instance by a message afterwards.
type IOMap struct {
	conn    *Conn
	region  *rmb.Region
	mapping rsocket.IOMapping

	mu     sync.Mutex // guards everything below
	closed bool
}

var _ io.WriterAt = (*Conn)(nil)

// MapIO allocates zeroed memory that the peer reaches at the given offset or, if offset is negative, at the memory's
// address. It is announced before everything written from now on. The peer must have a free slot for it (its
// ConnConfig.IOMaps), otherwise the error is ErrIOMapSlots.
func (c *Conn) MapIO(size int, offset int64) (*IOMap, error) {
	m, err := c.mapIO(size, offset)
	return m, c.fault("map", err)
}

func (c *Conn) mapIO(size int, offset int64) (*IOMap, error) {
	if c.closed.Load() {
		return nil, net.ErrClosed
	}
	region, err := c.dom.arena.Alloc(size)
	if err != nil {
		return nil, err
	}
	clear(region.Bytes())
	m := &IOMap{conn: c, region: region}
	m.mapping.Region = rsocket.SGE{Addr: region.Addr(), Key: region.RKey(), Length: uint32(size)}
	if m.mapping.Offset = uint64(offset); offset < 0 {
		m.mapping.Offset = region.Addr()
	}
	doErr := c.vec.Do(func() {
		if c.over {
			err = net.ErrClosed
			return
		}
		if err = c.ep.AddIOMap(m.mapping); err == nil {
			c.maps = append(c.maps, m)
		}
		c.publish()
	})
	if doErr != nil {
		err = doErr
	}
	if err != nil {
		return nil, errors.Join(err, region.Free())
	}
	return m, nil
}

// Bytes returns the memory. It must not be used after Close.
func (m *IOMap) Bytes() []byte { return m.region.Bytes() }

// Offset returns the offset at which the peer finds it.
func (m *IOMap) Offset() int64 { return int64(m.mapping.Offset) }

// Close ends the mapping and frees its memory, which otherwise stays until the stack is closed. The protocol does not
// tell the peer: one that goes on writing there loses the connection. Close is idempotent.
func (m *IOMap) Close() error {
	c := m.conn
	_ = c.vec.Do(func() {
		if c.over {
			return
		}
		c.ep.RemoveIOMap(m.mapping)
		if i := slices.Index(c.maps, m); i >= 0 {
			c.maps = slices.Delete(c.maps, i, i+1)
		}
	})
	return m.free()
}

// free frees the memory.
func (m *IOMap) free() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed = true
	return m.region.Free()
}

// WriteAt places p into the memory that the peer has mapped at the offset, after everything written so far. The peer's
// program is not notified. With ErrNotMapped the rest is at an offset that the peer has not mapped.
func (c *Conn) WriteAt(p []byte, off int64) (int, error) {
	c.tx.mu.Lock()
	defer c.unlockWrite()
	if off < 0 {
		return 0, c.fault("write", fmt.Errorf("negative offset: %w", rsocket.ErrIOMap))
	}
	t := &c.tx
	defer t.placing.Store(false)
	total := 0
	for {
		if err := t.err(); err != nil {
			return total, c.fault("write", err)
		}
		n, err := c.place(p[total:], uint64(off)+uint64(total))
		if total += n; err != nil || total == len(p) {
			return total, c.fault("write", err)
		}
		c.await(&t.half, t)
	}
}

// place writes as much as possible without blocking.
func (c *Conn) place(p []byte, off uint64) (n int, err error) {
	write := func() {
		if c.over {
			err = net.ErrClosed
			return
		}
		n, err = c.ep.WriteDirect(p, off)
		if n < len(p) && err == nil {
			c.tx.placeable.Store(false)
			c.tx.placing.Store(true)
		}
		c.publish()
	}
	if c.vec.TryEnter() {
		write()
		c.vec.Leave()
		return n, err
	}
	if doErr := c.vec.Do(write); doErr != nil {
		return 0, doErr
	}
	return n, err
}
