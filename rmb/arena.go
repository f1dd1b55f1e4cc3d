package rmb

import (
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"sync"

	"github.com/smcgw/smcgw/verbs"
)

const (
	// keepSlabs is how many empty slabs of a class an arena keeps for the next connection, however long that takes.
	keepSlabs = 1
	// keepBytes is how much empty memory of a class an arena keeps while connections come and go, because registering
	// and clearing memory costs more than all the rest of a short connection. [Pool.Trim] returns what is idle.
	keepBytes = 32 << 20
)

// keptSlabs returns the largest number of empty slabs of a class that an arena keeps.
func keptSlabs(class int) int { return max(keepSlabs, keepBytes/slabSize(class)) }

// Arena is the memory of one peer gateway: the unit of isolation, with registrations and a quota of its own. Freed
// regions are reused only for the same peer. It is safe for concurrent use.
type Arena struct {
	pool  *Pool
	from  Allocator
	keys  Registrar // nil if regions share the key of their slab
	owner any       // whose quota counts; the arena itself by default
	quota *quota

	// Everything below is guarded by pool.mu.
	slabs    [classes][]*slab
	empty    [classes]int // number of slabs without regions
	idle     [classes]int // the least value of empty since the last Trim
	reserved int64
	used     int64
	regions  int
	leaving  int        // removed slabs that are still being closed
	left     *sync.Cond // signals that leaving is 0
	closed   bool
}

// slab is one registration, divided into blocks of one class, or borrowed memory, which is a single region.
type slab struct {
	arena *Arena
	mr    verbs.MR
	class int
	free  []int // offsets of free blocks
	total int

	giveBack func() // of borrowed memory; nil for the arena's own
}

func (s *slab) borrowed() bool { return s.giveBack != nil }

// blockSize returns how many bytes a region of the slab counts for.
func (s *slab) blockSize() int64 {
	if s.borrowed() {
		return 0
	}
	return int64(classSize(s.class))
}

func (a *Arena) newSlab(mr verbs.MR, class int) *slab {
	s := &slab{arena: a, mr: mr, class: class, total: slabSize(class) / classSize(class)}
	for i := s.total - 1; i >= 0; i-- { // so that the first block is taken first
		s.free = append(s.free, i*classSize(class))
	}
	return s
}

func (s *slab) empty() bool { return len(s.free) == s.total }

// ArenaStats is a snapshot of one arena.
type ArenaStats struct {
	// Reserved and Used are bytes as in [PoolStats].
	Reserved, Used int64
	// Regions is the number of regions handed out.
	Regions int
}

// Stats returns a snapshot.
func (a *Arena) Stats() ArenaStats {
	a.pool.mu.Lock()
	defer a.pool.mu.Unlock()
	return ArenaStats{Reserved: a.reserved, Used: a.used, Regions: a.regions}
}

// Alloc returns a region of n bytes, with arbitrary contents, that the peer may write to. It does not wait: it fails
// with [ErrNoMemory], also for a size outside 1 to [MaxRegion], or with [ErrClosed] after Close. It may register memory
// with the device, so it is not for the hot path.
func (a *Arena) Alloc(n int) (*Region, error) {
	r, err := a.AllocLocal(n)
	if err != nil || a.keys == nil {
		return r, err
	}
	if err := r.register(a.keys); err != nil {
		return nil, errors.Join(err, r.Free())
	}
	return r, nil
}

// AllocLocal is Alloc for memory that only this side writes to, such as a send buffer. In an isolated arena no remote
// key reaches it.
func (a *Arena) AllocLocal(n int) (*Region, error) {
	class, ok := classOf(n)
	if !ok {
		return nil, fmt.Errorf("region of %d bytes: %w", n, ErrNoMemory)
	}
	for {
		r, err := a.take(class, n)
		if r != nil || err != nil {
			return r, err
		}
		if err := a.grow(class); err != nil {
			return nil, err
		}
	}
}

// Borrow registers memory of the caller for the connection of the caller alone. It counts as a region but uses neither
// quota nor limit; its owner must bound it. [Region.Free] calls giveBack once, when no key reaches the memory any more,
// although a write that another thread is just executing may still. If Borrow fails, giveBack is not called. It fails
// with [ErrNoMemory], which wraps [verbs.ErrNotSupported] if the device does not support such access, and with
// [ErrClosed] after Close.
func (a *Arena) Borrow(buf []byte, access verbs.Access, giveBack func()) (*Region, error) {
	keys, ok := a.from.(Registrar)
	if !ok {
		return nil, fmt.Errorf("%w: borrow %d bytes: %w", ErrNoMemory, len(buf), verbs.ErrNotSupported)
	}
	if !a.countBorrowed(1) {
		return nil, ErrClosed
	}
	mr, err := keys.RegMR(buf, access)
	if err != nil {
		a.countBorrowed(-1)
		return nil, fmt.Errorf("%w: %w", ErrNoMemory, err)
	}
	return &Region{
		buf: mr.Bytes(), addr: mr.Addr(), lkey: mr.LKey(), rkey: mr.RKey(),
		slab: &slab{arena: a, mr: mr, giveBack: giveBack},
	}, nil
}

// countBorrowed counts a region from before its memory is registered until after it is deregistered, so that the arena
// is not closed in between.
func (a *Arena) countBorrowed(regions int) (open bool) {
	a.pool.mu.Lock()
	defer a.pool.mu.Unlock()
	if a.closed {
		return false
	}
	a.regions += regions
	a.pool.stats.Regions += regions
	return true
}

// take returns a free block, or nil if every slab of the class is full.
func (a *Arena) take(class, n int) (*Region, error) {
	a.pool.mu.Lock()
	defer a.pool.mu.Unlock()
	if a.closed {
		return nil, ErrClosed
	}
	for _, s := range a.slabs[class] {
		if last := len(s.free) - 1; last >= 0 {
			if s.empty() {
				a.emptyLocked(class, -1)
			}
			offset := s.free[last]
			s.free = s.free[:last]
			a.countLocked(class, 1)
			return newRegion(s, offset, n), nil
		}
	}
	return nil, nil
}

// emptyLocked records that slabs have become empty, or with a negative number, that they no longer are.
func (a *Arena) emptyLocked(class, slabs int) {
	a.empty[class] += slabs
	a.idle[class] = min(a.idle[class], a.empty[class])
}

func (a *Arena) countLocked(class, regions int) {
	n := int64(regions * classSize(class))
	a.used += n
	a.regions += regions
	a.pool.stats.Used += n
	a.pool.stats.Regions += regions
}

// grow registers one more slab. It calls the device without the lock, because that may be slow.
func (a *Arena) grow(class int) error {
	n := slabSize(class)
	a.pool.mu.Lock()
	empty, err := a.pool.reserveLocked(a, int64(n))
	a.pool.mu.Unlock()
	closeErr := a.pool.closeAll(empty)
	if err != nil {
		return errors.Join(err, closeErr)
	}
	mr, err := a.from.AllocMR(n, a.slabAccess())
	a.pool.mu.Lock()
	defer a.pool.mu.Unlock()
	if err != nil {
		a.pool.unreserveLocked(a, int64(n))
		a.pool.stats.RefusedDevice++
		return fmt.Errorf("%w: %w", ErrNoMemory, err)
	}
	if a.closed {
		a.pool.unreserveLocked(a, int64(n))
		return errors.Join(ErrClosed, mr.Close())
	}
	a.slabs[class] = append(a.slabs[class], a.newSlab(mr, class))
	a.emptyLocked(class, 1)
	return closeErr
}

// slabAccess returns the access for slabs. If regions have keys of their own, that of the slab is for this side only.
func (a *Arena) slabAccess() verbs.Access {
	if a.keys != nil {
		return verbs.AccessLocalWrite
	}
	return Access
}

// trimLocked removes all empty slabs; the caller closes them without the lock.
func (a *Arena) trimLocked() (out []*slab) {
	for class := range a.slabs {
		out = append(out, a.trimClassLocked(class, 0)...)
	}
	return out
}

// trimIdleLocked removes the slabs that were not needed since the last call.
func (a *Arena) trimIdleLocked() (out []*slab) {
	for class := range a.slabs {
		if surplus := min(a.idle[class], a.empty[class]-keepSlabs); surplus > 0 {
			out = append(out, a.trimClassLocked(class, a.empty[class]-surplus)...)
		}
		a.idle[class] = a.empty[class]
	}
	return out
}

// trimClassLocked removes all but keep of the empty slabs of a class.
func (a *Arena) trimClassLocked(class, keep int) (out []*slab) {
	kept := 0
	a.slabs[class] = slices.DeleteFunc(a.slabs[class], func(s *slab) bool {
		if !s.empty() {
			return false
		}
		if kept < keep {
			kept++
			return false
		}
		a.pool.unreserveLocked(a, int64(slabSize(class)))
		a.emptyLocked(class, -1)
		a.leaving++
		out = append(out, s)
		return true
	})
	return out
}

// Close deregisters all memory. It returns when the device has released all of it, including what [Pool.Trim] has
// removed and is still closing. It fails with [ErrBusy], and changes nothing, while regions are in use. Close is
// idempotent.
func (a *Arena) Close() error {
	a.pool.mu.Lock()
	if a.regions > 0 {
		n := a.regions
		a.pool.mu.Unlock()
		return fmt.Errorf("%d regions: %w", n, ErrBusy)
	}
	a.closed = true
	out := a.trimLocked()
	a.pool.closedLocked(a)
	a.pool.mu.Unlock()
	err := a.pool.closeAll(out)
	a.pool.mu.Lock()
	defer a.pool.mu.Unlock()
	for a.leaving > 0 {
		a.left.Wait()
	}
	return err
}

// Sizes of regions and slabs. Classes are powers of two. A slab is one memory region registered with the device and
// divided into regions of one class, so that thousands of connections share few registrations.
const (
	// MinRegion is the smallest region: it has room for a target list and control scratch space.
	MinRegion = 512
	// MaxRegion is the largest region.
	MaxRegion = 16 << 20

	minSlab        = 64 << 10
	maxSlab        = 1 << 20
	regionsPerSlab = 16
	classes        = 16 // 512 B … 16 MiB
)

// classOf returns the class of the smallest region with room for n bytes, or false if there is none.
func classOf(n int) (int, bool) {
	if n <= 0 || n > MaxRegion {
		return 0, false
	}
	return bits.Len(uint(max(n, MinRegion)-1)) - bits.Len(uint(MinRegion-1)), true
}

// classSize returns the size of a region of the class in bytes.
func classSize(class int) int { return MinRegion << class }

// slabSize returns the size of a slab of the class in bytes: 16 small regions, 4 of 256 KiB, or 1 of 1 MiB and more.
func slabSize(class int) int {
	size := classSize(class)
	return max(size, min(max(size*regionsPerSlab, minSlab), maxSlab))
}

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
