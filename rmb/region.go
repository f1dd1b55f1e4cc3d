package rmb

import (
	"fmt"

	"github.com/smcgw/smcgw/verbs"
)

// Region is a piece of registered memory that an arena has handed out or borrowed. The caller that allocated it owns
// it. The peer may write to it as soon as it knows its key.
type Region struct {
	buf        []byte
	addr       uint64
	lkey, rkey uint32

	slab   *slab
	offset int
	own    verbs.MR // the registration of this region alone; nil: that of the slab is used

	// Guarded by the pool's lock.
	freed, quarantined bool
}

func newRegion(s *slab, offset, n int) *Region {
	return &Region{
		buf:  s.mr.Bytes()[offset : offset+n : offset+n],
		addr: s.mr.Addr() + uint64(offset), lkey: s.mr.LKey(), rkey: s.mr.RKey(),
		slab: s, offset: offset,
	}
}

// register gives the region a key of its own.
func (r *Region) register(keys Registrar) error {
	mr, err := keys.RegMR(r.buf, Access)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrNoMemory, err)
	}
	r.own, r.addr, r.lkey, r.rkey = mr, mr.Addr(), mr.LKey(), mr.RKey()
	return nil
}

// Bytes returns the memory. It must not be used after Free.
func (r *Region) Bytes() []byte { return r.buf }

// Addr returns the address of the first byte for use with the keys.
func (r *Region) Addr() uint64 { return r.addr }

// LKey returns the key for local use.
func (r *Region) LKey() uint32 { return r.lkey }

// RKey returns the key for the peer.
func (r *Region) RKey() uint32 { return r.rkey }

// Quarantine marks the region as given up by its owner while its peer may still write to it. It remains reserved, and
// counts against quota and limit, until Free.
func (r *Region) Quarantine() {
	p := r.slab.arena.pool
	p.mu.Lock()
	defer p.mu.Unlock()
	if !r.freed && !r.quarantined {
		r.quarantined = true
		p.stats.Quarantined += r.slab.blockSize()
	}
}

// Free makes the memory available to other connections of the same peer. If the region has a key of its own, it first
// invalidates that. Call it only when the peer has stopped writing. Free is idempotent. If the key cannot be
// invalidated, the memory is not reused and remains reserved.
func (r *Region) Free() error {
	a := r.slab.arena
	a.pool.mu.Lock()
	if r.freed {
		a.pool.mu.Unlock()
		return nil
	}
	r.freed = true
	a.pool.mu.Unlock()
	if r.slab.borrowed() {
		return r.slab.returned()
	}
	if r.own != nil { // without the lock, because the device may be slow
		if err := r.own.Close(); err != nil {
			return err
		}
	}
	a.pool.mu.Lock()
	if r.quarantined {
		a.pool.stats.Quarantined -= r.slab.blockSize()
	}
	a.countLocked(r.slab.class, -1)
	r.slab.free = append(r.slab.free, r.offset)
	var out []*slab
	if class := r.slab.class; r.slab.empty() {
		a.emptyLocked(class, 1)
		if kept := keptSlabs(class); a.empty[class] > kept {
			out = a.trimClassLocked(class, kept)
		}
	}
	a.pool.mu.Unlock()
	return a.pool.closeAll(out)
}

// returned returns borrowed memory to its owner. If the device does not release it, it remains borrowed.
func (s *slab) returned() error {
	if err := s.mr.Close(); err != nil {
		return err
	}
	s.arena.countBorrowed(-1)
	s.giveBack()
	return nil
}
