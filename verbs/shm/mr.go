package shm

import (
	"fmt"

	"github.com/smcgw/smcgw/verbs"
)

// pd is the protection domain of a peer.
type pd struct {
	peer *Peer
}

var _ verbs.PD = (*pd)(nil)

// mr is a memory region: a range of our memfd, or memory of the caller.
type mr struct {
	peer   *Peer
	buf    []byte
	addr   uint64
	key    uint32
	access verbs.Access
	shared bool // in the memfd
	closed bool // guarded by Peer.mu
}

var _ verbs.MR = (*mr)(nil)

// RegMR implements verbs.PD. The caller's memory gets local access only.
func (d *pd) RegMR(buf []byte, access verbs.Access) (verbs.MR, error) {
	if len(buf) == 0 || !access.ValidMR() {
		return nil, fmt.Errorf("register %d bytes with access %#x: %w", len(buf), uint32(access), verbs.ErrInvalid)
	}
	if access.Remote() != 0 {
		return nil, fmt.Errorf("remote access to memory that is not shared: %w", verbs.ErrNotSupported)
	}
	p := d.peer
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.refLocked(); err != nil {
		return nil, err
	}
	m := &mr{peer: p, buf: buf, addr: addressOf(buf), access: access}
	return p.addKeyLocked(m)
}

// AllocMR implements verbs.PD. The peer can be given access to this memory.
func (d *pd) AllocMR(size int, access verbs.Access) (verbs.MR, error) {
	if size <= 0 || !access.ValidMR() {
		return nil, fmt.Errorf("allocate %d bytes with access %#x: %w", size, uint32(access), verbs.ErrInvalid)
	}
	p := d.peer
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.refLocked(); err != nil {
		return nil, err
	}
	off, err := p.allocLocked(uint64(size))
	if err != nil {
		p.unrefLocked()
		return nil, err
	}
	m := &mr{peer: p, buf: p.own.span(off, uint64(size)), addr: off, access: access, shared: true}
	return p.addKeyLocked(m)
}

// addKeyLocked assigns a key to m and takes over a reference to the peer.
func (p *Peer) addKeyLocked(m *mr) (verbs.MR, error) {
	if !p.keys.addLocked(m) {
		if m.shared {
			p.releaseLocked(m.addr, uint64(len(m.buf)))
		}
		p.unrefLocked()
		return nil, fmt.Errorf("memory regions of %v: %w", p, verbs.ErrNoMemory)
	}
	if m.shared {
		e := p.own.words(p.ownLayout.mrEntry(m.key>>16), 3)
		e[1].Store(m.addr)
		e[2].Store(uint64(len(m.buf)))
		e[0].Store(mrWord(m.key, m.access))
	}
	return m, nil
}

func mrWord(key uint32, access verbs.Access) uint64 {
	return uint64(key&0xffff)<<32 | uint64(access.Remote())<<8 | 1
}

func (m *mr) Bytes() []byte { return m.buf }

func (m *mr) Addr() uint64 { return m.addr }

func (m *mr) LKey() uint32 { return m.key }

func (m *mr) RKey() uint32 { return m.key }

// Close implements verbs.MR. The range is reused when the peer has acknowledged that; see grace.go.
func (m *mr) Close() error {
	p := m.peer
	p.mu.Lock()
	defer p.mu.Unlock()
	if m.closed {
		return nil
	}
	m.closed = true
	p.keys.removeLocked(m)
	if m.shared {
		p.own.word(p.ownLayout.mrEntry(m.key >> 16)).Store(0)
		p.retireLocked(reclaimed{off: m.addr, size: uint64(len(m.buf))})
	}
	p.unrefLocked()
	return nil
}

func (d *pd) CreateQP(attr *verbs.QPInitAttr) (verbs.QP, error) { return d.peer.createQP(attr) }

// CreateAH implements verbs.PD. The domain determines the peer, whatever the address.
func (d *pd) CreateAH(verbs.AHAttr) (verbs.AH, error) { return d.peer.createAH() }

// Close implements verbs.PD. The domain itself lives as long as the peer.
func (d *pd) Close() error {
	p := d.peer
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.qpCount+p.keys.count+p.ahCount > 0 {
		return fmt.Errorf("%d queue pairs, %d memory regions, %d address handles of %v: %w",
			p.qpCount, p.keys.count, p.ahCount, p, verbs.ErrBusy)
	}
	return nil
}

// local returns the local memory of an SGE, or nil if the key does not cover it.
func (p *Peer) local(s verbs.SGE, need verbs.Access) []byte {
	m := p.keys.find(s.LKey)
	if m == nil || m.access&need != need || s.Addr < m.addr {
		return nil
	}
	off, n := s.Addr-m.addr, uint64(s.Length)
	if !fits(off, n, uint64(len(m.buf))) {
		return nil
	}
	return m.buf[off : off+n : off+n]
}

// remoteSpan returns n bytes of the peer's memory, or nil if its table does not let this side write them. The entry is
// read once; whatever it says, the span is inside the mapping.
func (p *Peer) remoteSpan(rkey uint32, addr, n uint64) []byte {
	e := p.rem.words(p.remLayout.mrEntry(rkey>>16), 3)
	word := e[0].Load()
	base, size := e[1].Load(), e[2].Load()
	if e[0].Load() != word || word&1 == 0 || uint32(word>>32) != rkey&0xffff {
		return nil
	}
	if verbs.Access(word>>8&0xff)&verbs.AccessRemoteWrite == 0 || addr < base || !fits(addr-base, n, size) {
		return nil
	}
	if !fits(addr, n, p.rem.size()) || addr < p.remLayout.arena {
		return nil
	}
	return p.rem.span(addr, n)
}
