package soft

import (
	"fmt"
	"os"
	"sync/atomic"

	"github.com/smcgw/smcgw/verbs"
)

// mr is a memory region. The garbage collector owns its memory: a packet that is being executed while another goroutine
// closes the region still writes to existing memory.
type mr struct {
	pd     *pd
	buf    []byte
	addr   uint64
	key    uint32
	access verbs.Access
	remote atomic.Uint32 // current rights of the peer; invalidation clears them
	own    bool          // allocated by AllocMR
	closed atomic.Bool
}

var _ verbs.MR = (*mr)(nil)

const validAccess = verbs.AccessLocalWrite | verbs.AccessRemoteWrite | verbs.AccessRemoteRead |
	verbs.AccessRemoteAtomic | verbs.AccessRemoteInvalidate

func (p *pd) RegMR(buf []byte, access verbs.Access) (verbs.MR, error) {
	if len(buf) == 0 || !access.ValidMR() || access&^validAccess != 0 {
		return nil, fmt.Errorf("register %d bytes with access %#x: %w", len(buf), uint32(access), verbs.ErrInvalid)
	}
	return p.addMR(&mr{pd: p, buf: buf, access: access})
}

func (p *pd) AllocMR(size int, access verbs.Access) (verbs.MR, error) {
	if size <= 0 || !access.ValidMR() || access&^validAccess != 0 {
		return nil, fmt.Errorf("allocate %d bytes with access %#x: %w", size, uint32(access), verbs.ErrInvalid)
	}
	if limit := int64(p.dev.cfg.MaxMemory); int64(size) > limit || p.dev.memory.Add(int64(size)) > limit {
		if int64(size) <= limit {
			p.dev.memory.Add(-int64(size))
		}
		return nil, fmt.Errorf("allocate %d bytes: %w", size, verbs.ErrNoMemory)
	}
	m, err := p.addMR(&mr{pd: p, buf: pages(size), access: access, own: true})
	if err != nil {
		p.dev.memory.Add(-int64(size))
	}
	return m, err
}

// pages returns page-aligned zeroed memory.
func pages(size int) []byte {
	page := os.Getpagesize()
	b := make([]byte, size+page-1)
	skip := int(-addressOf(b) & uint64(page-1))
	return b[skip : skip+size : skip+size]
}

func (p *pd) addMR(m *mr) (verbs.MR, error) {
	if p.dev.isClosed() {
		return nil, verbs.ErrClosed
	}
	m.addr = addressOf(m.buf)
	m.remote.Store(uint32(m.access.Remote()))
	if err := p.users.Hold(); err != nil {
		return nil, err
	}
	if !p.dev.keys.add(m) {
		p.users.Release()
		return nil, fmt.Errorf("memory regions: %w", verbs.ErrNoMemory)
	}
	return m, nil
}

func (m *mr) Bytes() []byte { return m.buf }

// Addr implements verbs.MR. It is the virtual address.
func (m *mr) Addr() uint64 { return m.addr }

func (m *mr) LKey() uint32 { return m.key }

func (m *mr) RKey() uint32 { return m.key }

// Close implements verbs.MR. Later packets are refused; one that another vector's loop is executing may still be
// completed.
func (m *mr) Close() error {
	if m.closed.Swap(true) {
		return nil
	}
	m.pd.dev.keys.remove(m)
	if m.own {
		m.pd.dev.memory.Add(-int64(len(m.buf)))
	}
	m.pd.users.Release()
	return nil
}

// span returns the n bytes at addr, or nil if they are not all inside the region.
func (m *mr) span(addr, n uint64) []byte {
	off := addr - m.addr
	if addr < m.addr || off > uint64(len(m.buf)) || n > uint64(len(m.buf))-off {
		return nil
	}
	return m.buf[off : off+n : off+n]
}

// local returns the memory of an SGE, or nil if its key does not cover it.
func (p *pd) local(s *verbs.SGE, off, n uint32, need verbs.Access) []byte {
	m := p.dev.keys.find(s.LKey)
	if m == nil || m.pd != p || m.access&need != need {
		return nil
	}
	return m.span(s.Addr+uint64(off), uint64(n))
}

// remote returns the memory that a peer refers to, or nil if the key does not grant it.
func (p *pd) remote(key uint32, addr, n uint64, need verbs.Access) []byte {
	if m := p.region(key, need); m != nil {
		return m.span(addr, n)
	}
	return nil
}

// region returns the region of a key, or nil if the peer does not have these rights.
func (p *pd) region(key uint32, need verbs.Access) *mr {
	if m := p.dev.keys.find(key); m != nil && m.pd == p && m.grants(need) {
		return m
	}
	return nil
}

// grants reports whether the peer still has these rights.
func (m *mr) grants(need verbs.Access) bool {
	return !m.closed.Load() && verbs.Access(m.remote.Load())&need == need
}

// invalidate ends the peer's access to a region. It returns false if the key has no region that may be invalidated.
func (p *pd) invalidate(key uint32, byPeer bool) bool {
	m := p.dev.keys.find(key)
	if m == nil || m.pd != p || byPeer && m.access&verbs.AccessRemoteInvalidate == 0 {
		return false
	}
	m.remote.Store(0)
	return true
}
