package rmb

import (
	"errors"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/smcgw/smcgw/verbs"
)

// Errors of the pool.
var (
	// ErrNoMemory means that the limit, the peer's quota or the device is exhausted, or that no region can be that
	// large.
	ErrNoMemory = errors.New("no rdma memory")
	// ErrConfig means that a limit is invalid.
	ErrConfig = errors.New("invalid pool configuration")
	// ErrClosed means that the arena is closed.
	ErrClosed = errors.New("arena closed")
	// ErrBusy means that an arena cannot be closed because regions are still in use.
	ErrBusy = errors.New("regions in use")
)

// Access is what regions permit: the device and the peer may write to them.
const Access = verbs.AccessLocalWrite | verbs.AccessRemoteWrite

// Allocator provides memory for an arena. Every verbs.PD is one.
type Allocator interface {
	AllocMR(size int, access verbs.Access) (verbs.MR, error)
}

// Registrar is an Allocator whose memory can also be registered again in parts, each with a key of its own. Every
// verbs.PD of a device with DeviceAttr.RemoteRegMR is one.
type Registrar interface {
	Allocator
	RegMR(buf []byte, access verbs.Access) (verbs.MR, error)
}

// PoolConfig bounds a pool.
type PoolConfig struct {
	// Limit is the hard limit in bytes for all registered memory; 0 means 1 GiB.
	Limit int64
	// PeerLimit bounds what the arenas of one owner may register together; 0 means Limit.
	PeerLimit int64
}

func (c PoolConfig) withDefaults() PoolConfig {
	if c.Limit == 0 {
		c.Limit = 1 << 30
	}
	if c.PeerLimit == 0 {
		c.PeerLimit = c.Limit
	}
	return c
}

// Pool bounds the memory of all arenas. It is safe for concurrent use.
type Pool struct {
	cfg PoolConfig

	mu     sync.Mutex // guards everything below, and every arena and quota
	peers  map[*Arena]struct{}
	owners map[any]*quota
	stats  PoolStats

	trimmed time.Time // time of the last effective Trim
}

// quota is what the arenas of one owner hold together.
type quota struct {
	reserved int64
	arenas   map[*Arena]struct{}
}

// PoolStats is a snapshot of a pool, in bytes unless said otherwise.
type PoolStats struct {
	// Limit is the configured limit.
	Limit int64
	// Reserved is registered with devices. It never exceeds Limit.
	Reserved int64
	// Released is what has been returned to devices since the pool was made.
	Released int64
	// Used is in regions handed out, rounded up to their class, including quarantined ones.
	Used int64
	// Quarantined is in regions to which a peer may still write.
	Quarantined int64
	// Regions is the number of regions handed out.
	Regions int
	// Arenas is the number of open arenas.
	Arenas int
	// Refused counts allocations refused by the limit, by a peer's quota, and by a device.
	Refused, RefusedQuota, RefusedDevice uint64
}

// RingSize returns the size of the rings for the next connection. Large rings are for bulk transfers, and thousands of
// connections rarely all transfer in bulk; so the more memory is handed out, the smaller they become.
func (s PoolStats) RingSize() int {
	switch {
	case s.Used < s.Limit/4:
		return 1 << 20
	case s.Used < s.Limit/2:
		return 256 << 10
	default:
		return 64 << 10
	}
}

// FirstRingSize is RingSize for a connection that can exchange its ring for a larger one. It can begin with less; 1 GiB
// is enough for the rings of 20,000.
func (s PoolStats) FirstRingSize() int {
	switch {
	case s.Used < s.Limit/8:
		return 256 << 10
	case s.Used < s.Limit/4:
		return 128 << 10
	case s.Used < s.Limit/8*3:
		return 64 << 10
	default:
		return 32 << 10
	}
}

// MayGrow reports whether a connection may exchange its ring for a larger one of n bytes. Half of the memory is
// reserved for future connections.
func (s PoolStats) MayGrow(n int) bool { return s.Used+int64(n) <= s.Limit/2 }

// NewPool returns an empty pool, or [ErrConfig].
func NewPool(cfg PoolConfig) (*Pool, error) {
	cfg = cfg.withDefaults()
	if cfg.Limit < 0 || cfg.PeerLimit < 0 || cfg.Limit > math.MaxInt64/2 {
		return nil, fmt.Errorf("pool limit %d, peer limit %d: %w", cfg.Limit, cfg.PeerLimit, ErrConfig)
	}
	return &Pool{cfg: cfg, peers: make(map[*Arena]struct{}), owners: make(map[any]*quota), stats: PoolStats{Limit: cfg.Limit}}, nil
}

// Stats returns a snapshot.
func (p *Pool) Stats() PoolStats {
	p.mu.Lock()
	defer p.mu.Unlock()
	st := p.stats
	st.Arenas = len(p.peers)
	return st
}

// Arena opens the part of the pool that belongs to one peer. All regions of a slab share one key: the peer is trusted
// with the memory of all its connections.
func (p *Pool) Arena(from Allocator) *Arena { return p.open(&Arena{from: from}) }

// IsolatedArena is Arena with one key per region, which ends with the region. No connection of the peer can reach the
// memory of another one, and nothing can reach freed memory.
func (p *Pool) IsolatedArena(from Registrar) *Arena { return p.open(&Arena{from: from, keys: from}) }

// ArenaOf is Arena for a peer that may have several. All arenas of an owner, which must be a comparable value, share
// one quota.
func (p *Pool) ArenaOf(owner any, from Allocator) *Arena {
	return p.open(&Arena{from: from, owner: owner})
}

// IsolatedArenaOf is IsolatedArena for an owner, like ArenaOf.
func (p *Pool) IsolatedArenaOf(owner any, from Registrar) *Arena {
	return p.open(&Arena{from: from, keys: from, owner: owner})
}

func (p *Pool) open(a *Arena) *Arena {
	a.pool, a.left = p, sync.NewCond(&p.mu)
	if a.owner == nil {
		a.owner = a
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.peers[a] = struct{}{}
	if a.quota = p.owners[a.owner]; a.quota == nil {
		a.quota = &quota{arenas: map[*Arena]struct{}{}}
		p.owners[a.owner] = a.quota
	}
	a.quota.arenas[a] = struct{}{}
	return a
}

// trimEvery is the least time between two checks for idle memory.
const trimEvery = 10 * time.Second

// Trim returns to the devices the memory that has been idle since the last Trim, except for a little of each size. Call
// it every second or so; it does something every ten.
func (p *Pool) Trim(now time.Time) error {
	p.mu.Lock()
	if now.Sub(p.trimmed) < trimEvery {
		p.mu.Unlock()
		return nil
	}
	p.trimmed = now
	var idle []*slab
	for a := range p.peers {
		idle = append(idle, a.trimIdleLocked()...)
	}
	p.mu.Unlock()
	return p.closeAll(idle)
}

// closeAll closes slabs that have been removed from their arenas. It calls the device without the lock, because that
// may be slow.
func (p *Pool) closeAll(out []*slab) error {
	var errs []error
	for _, s := range out {
		errs = append(errs, s.mr.Close())
		p.mu.Lock()
		if s.arena.leaving--; s.arena.leaving == 0 {
			s.arena.left.Broadcast()
		}
		p.mu.Unlock()
	}
	return errors.Join(errs...)
}

// closedLocked removes an arena from the tables. What it is still registering counts until that is undone.
func (p *Pool) closedLocked(a *Arena) {
	delete(p.peers, a)
	delete(a.quota.arenas, a)
	if len(a.quota.arenas) == 0 && p.owners[a.owner] == a.quota {
		delete(p.owners, a.owner)
	}
}

// Owners returns what each owner holds. An arena that was opened without an owner is its own.
func (p *Pool) Owners() map[any]ArenaStats {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := make(map[any]ArenaStats, len(p.owners))
	for owner, q := range p.owners {
		st := ArenaStats{Reserved: q.reserved}
		for a := range q.arenas {
			st.Used += a.used
			st.Regions += a.regions
		}
		all[owner] = st
	}
	return all
}

// reserveLocked reserves n bytes of the limit and of the owner's quota. If a bound is reached, it first removes empty
// slabs from arenas and returns them; the caller closes them without the lock.
func (p *Pool) reserveLocked(a *Arena, n int64) (empty []*slab, err error) {
	if a.quota.reserved+n > p.cfg.PeerLimit {
		for other := range a.quota.arenas {
			empty = append(empty, other.trimLocked()...)
		}
	}
	if a.quota.reserved+n > p.cfg.PeerLimit {
		p.stats.RefusedQuota++
		return empty, fmt.Errorf("quota of %d bytes per peer: %w", p.cfg.PeerLimit, ErrNoMemory)
	}
	if p.stats.Reserved+n > p.cfg.Limit {
		for other := range p.peers {
			empty = append(empty, other.trimLocked()...)
		}
	}
	if p.stats.Reserved+n > p.cfg.Limit {
		p.stats.Refused++
		return empty, fmt.Errorf("limit of %d bytes: %w", p.cfg.Limit, ErrNoMemory)
	}
	p.stats.Reserved += n
	a.reserved += n
	a.quota.reserved += n
	return empty, nil
}

func (p *Pool) unreserveLocked(a *Arena, n int64) {
	p.stats.Reserved -= n
	p.stats.Released += n
	a.reserved -= n
	a.quota.reserved -= n
}
