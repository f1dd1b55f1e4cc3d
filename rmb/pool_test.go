package rmb

import (
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/smcgw/smcgw/verbs"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// device is a fake allocator that knows what is registered.
type device struct {
	mu   sync.Mutex
	next uint64
	open map[*region]struct{}
	err  error
	slow func() // what the end of a registration waits for
}

type region struct {
	dev  *device
	buf  []byte
	addr uint64
}

func (d *device) AllocMR(size int, access verbs.Access) (verbs.MR, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.err != nil {
		return nil, d.err
	}
	if access != Access {
		return nil, errors.New("wrong access")
	}
	if d.open == nil {
		d.open = make(map[*region]struct{})
		d.next = 0x7f0000000000
	}
	r := &region{dev: d, buf: make([]byte, size), addr: d.next}
	d.next += uint64(size) + 4096
	d.open[r] = struct{}{}
	return r, nil
}

func (d *device) bytes() (n int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for r := range d.open {
		n += int64(len(r.buf))
	}
	return n
}

func (r *region) Bytes() []byte { return r.buf }
func (r *region) Addr() uint64  { return r.addr }
func (r *region) LKey() uint32  { return uint32(r.addr >> 12) }
func (r *region) RKey() uint32  { return uint32(r.addr>>12) + 1 }
func (r *region) Close() error {
	if r.dev.slow != nil {
		r.dev.slow()
	}
	r.dev.mu.Lock()
	defer r.dev.mu.Unlock()
	if _, ok := r.dev.open[r]; !ok {
		return verbs.ErrClosed
	}
	delete(r.dev.open, r)
	return nil
}

func newPool(t require.TestingT, limit, quota int64) *Pool {
	p, err := NewPool(PoolConfig{Limit: limit, PeerLimit: quota})
	require.NoError(t, err)
	return p
}

func TestClasses(t *testing.T) {
	for _, tc := range []struct{ n, size, slab int }{
		{1, 512, 64 << 10},
		{512, 512, 64 << 10},
		{513, 1024, 64 << 10},
		{4096, 4096, 64 << 10},
		{64 << 10, 64 << 10, 1 << 20},
		{256 << 10, 256 << 10, 1 << 20},
		{1<<20 + 1, 2 << 20, 2 << 20},
		{MaxRegion, MaxRegion, MaxRegion},
	} {
		class, ok := classOf(tc.n)
		require.True(t, ok)
		require.Less(t, class, classes)
		require.Equal(t, tc.size, classSize(class), tc.n)
		require.Equal(t, tc.slab, slabSize(class), tc.n)
	}
	for _, n := range []int{-1, 0, MaxRegion + 1} {
		_, ok := classOf(n)
		require.False(t, ok, n)
	}
}

func TestRegionsAreDisjointAndRecycled(t *testing.T) {
	dev := &device{}
	a := newPool(t, 1<<24, 0).Arena(dev)
	first, err := a.Alloc(300)
	require.NoError(t, err)
	second, err := a.Alloc(512)
	require.NoError(t, err)
	require.Len(t, first.Bytes(), 300)
	require.Equal(t, 300, cap(first.Bytes()))
	require.Equal(t, first.Addr()+512, second.Addr())
	require.Equal(t, first.RKey(), second.RKey())
	require.NotEqual(t, first.LKey(), first.RKey())
	require.NoError(t, first.Free())
	third, err := a.Alloc(400)
	require.NoError(t, err)
	require.Equal(t, first.Addr(), third.Addr(), "freed memory is used again")
	require.NoError(t, first.Free(), "a second free of the old handle frees nothing")
	require.Equal(t, 2, a.Stats().Regions)
}

func TestLimitAndQuota(t *testing.T) {
	dev := &device{}
	p := newPool(t, 3<<20, 2<<20)
	a, b := p.Arena(dev), p.Arena(dev)
	var held []*Region
	for range 2 {
		r, err := a.Alloc(1 << 20)
		require.NoError(t, err)
		held = append(held, r)
	}
	_, err := a.Alloc(1)
	require.ErrorIs(t, err, ErrNoMemory)
	require.Equal(t, uint64(1), p.Stats().RefusedQuota)
	r, err := b.Alloc(1 << 20)
	require.NoError(t, err)
	_, err = b.Alloc(1 << 20)
	require.ErrorIs(t, err, ErrNoMemory)
	require.Equal(t, uint64(1), p.Stats().Refused)
	require.Equal(t, int64(3<<20), p.Stats().Reserved)

	// Empty slabs of another arena make room.
	require.NoError(t, held[0].Free())
	require.Equal(t, int64(3<<20), dev.bytes(), "one empty slab is kept warm")
	_, err = b.Alloc(1 << 20)
	require.NoError(t, err)
	require.Equal(t, int64(3<<20), dev.bytes())
	require.NoError(t, r.Free())
}

// Connections that come and go register no memory: what they leave empty is there for the next ones, up to a bound,
// until it has lain idle.
func TestEmptySlabsAreKept(t *testing.T) {
	const size, kept = 2 << 20, keepBytes / (2 << 20)
	dev := &device{}
	p := newPool(t, 1<<30, 0)
	a := p.Arena(dev)
	alloc := func(n int) (held []*Region) {
		for range n {
			r, err := a.Alloc(size)
			require.NoError(t, err)
			held = append(held, r)
		}
		return held
	}
	free := func(held []*Region) {
		for _, r := range held {
			require.NoError(t, r.Free())
		}
	}
	now := time.Unix(1000, 0)
	trim := func() {
		now = now.Add(trimEvery)
		require.NoError(t, p.Trim(now))
	}
	trim()
	free(alloc(kept))
	registered := dev.next
	for range 5 {
		held := alloc(kept)
		require.NoError(t, p.Trim(now), "too early: it does nothing")
		free(held)
	}
	require.Equal(t, registered, dev.next, "nothing was registered")
	require.Equal(t, int64(kept*size), dev.bytes())

	free(alloc(kept + 3))
	require.Equal(t, int64(kept*size), dev.bytes(), "what is kept has a bound")

	trim() // all were in use since the last time
	require.Equal(t, int64(kept*size), dev.bytes())
	free(alloc(kept - 4))
	trim()
	require.Equal(t, int64((kept-4)*size), dev.bytes(), "four were not needed")
	require.Equal(t, dev.bytes(), p.Stats().Reserved)
	trim()
	require.Equal(t, int64(keepSlabs*size), dev.bytes(), "none was")
	trim()
	require.Equal(t, int64(keepSlabs*size), dev.bytes())
	require.NoError(t, a.Close())
	require.Zero(t, dev.bytes())
}

func TestQuarantineCounts(t *testing.T) {
	p := newPool(t, 1<<20, 0)
	a := p.Arena(&device{})
	r, err := a.Alloc(1 << 20)
	require.NoError(t, err)
	r.Quarantine()
	r.Quarantine()
	require.Equal(t, int64(1<<20), p.Stats().Quarantined)
	_, err = a.Alloc(1 << 20)
	require.ErrorIs(t, err, ErrNoMemory)
	require.ErrorIs(t, a.Close(), ErrBusy)
	require.NoError(t, r.Free())
	r.Quarantine()
	require.Zero(t, p.Stats().Quarantined)
	require.NoError(t, a.Close())
}

func TestDeviceRefuses(t *testing.T) {
	dev := &device{err: verbs.ErrNoMemory}
	p := newPool(t, 1<<20, 0)
	a := p.Arena(dev)
	_, err := a.Alloc(100)
	require.ErrorIs(t, err, ErrNoMemory)
	require.ErrorIs(t, err, verbs.ErrNoMemory)
	require.Equal(t, uint64(1), p.Stats().RefusedDevice)
	require.Zero(t, p.Stats().Reserved)
	for _, n := range []int{-1, 0, MaxRegion + 1} {
		_, err = a.Alloc(n)
		require.ErrorIs(t, err, ErrNoMemory, n)
	}
}

func TestCloseGivesEverythingBack(t *testing.T) {
	dev := &device{}
	p := newPool(t, 0, 0)
	a := p.Arena(dev)
	r, err := a.Alloc(1000)
	require.NoError(t, err)
	require.NoError(t, r.Free())
	registered := dev.bytes()
	require.NotZero(t, registered)
	require.NoError(t, a.Close())
	require.NoError(t, a.Close())
	require.Zero(t, dev.bytes())
	_, err = a.Alloc(1)
	require.ErrorIs(t, err, ErrClosed)
	require.Equal(t, PoolStats{Limit: 1 << 30, Released: registered}, p.Stats())
}

func TestBadLimits(t *testing.T) {
	_, err := NewPool(PoolConfig{Limit: -1})
	require.ErrorIs(t, err, ErrConfig)
}

// The pool never exceeds its bounds, its counters are the truth, and regions never overlap.
func TestPoolModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const limit, quota = 6 << 20, 4 << 20
		dev := &device{}
		p := newPool(t, limit, quota)
		arenas := []*Arena{p.Arena(dev), p.Arena(dev)}
		var live []*Region
		now := time.Unix(1000, 0)
		t.Repeat(map[string]func(*rapid.T){
			"alloc": func(t *rapid.T) {
				a := rapid.SampledFrom(arenas).Draw(t, "arena")
				r, err := a.Alloc(rapid.IntRange(1, 1<<21).Draw(t, "size"))
				if err != nil {
					require.ErrorIs(t, err, ErrNoMemory)
					return
				}
				live = append(live, r)
			},
			"free": func(t *rapid.T) {
				if len(live) == 0 {
					t.Skip("nothing to free")
				}
				i := rapid.IntRange(0, len(live)-1).Draw(t, "i")
				if rapid.Bool().Draw(t, "quarantine") {
					live[i].Quarantine()
				}
				require.NoError(t, live[i].Free())
				live = slices.Delete(live, i, i+1)
			},
			"trim": func(t *rapid.T) {
				now = now.Add(time.Duration(rapid.IntRange(0, 20).Draw(t, "seconds")) * time.Second)
				require.NoError(t, p.Trim(now))
			},
			"": func(t *rapid.T) { checkPool(t, p, dev, arenas, live, limit, quota) },
		})
		for _, r := range live {
			require.NoError(t, r.Free())
		}
		require.Zero(t, p.Stats().Used)
		for _, a := range arenas {
			require.NoError(t, a.Close())
		}
		require.Zero(t, dev.bytes())
	})
}

func checkPool(t *rapid.T, p *Pool, dev *device, arenas []*Arena, live []*Region, limit, quota int64) {
	st := p.Stats()
	require.Equal(t, dev.bytes(), st.Reserved)
	require.LessOrEqual(t, st.Reserved, limit)
	require.Equal(t, len(live), st.Regions)
	require.Zero(t, st.Quarantined)
	for _, a := range arenas {
		require.LessOrEqual(t, a.Stats().Reserved, quota)
		require.LessOrEqual(t, a.Stats().Used, a.Stats().Reserved)
		for class, slabs := range a.slabs {
			empty := 0
			for _, s := range slabs {
				if s.empty() {
					empty++
				}
			}
			require.Equal(t, empty, a.empty[class])
			require.LessOrEqual(t, a.idle[class], empty)
			require.GreaterOrEqual(t, a.idle[class], 0)
		}
	}
	sorted := slices.Clone(live)
	slices.SortFunc(sorted, func(a, b *Region) int { return int(int64(a.Addr()) - int64(b.Addr())) })
	for i := 1; i < len(sorted); i++ {
		require.LessOrEqual(t, sorted[i-1].Addr()+uint64(len(sorted[i-1].Bytes())), sorted[i].Addr())
	}
}

func TestPoolConcurrent(t *testing.T) {
	dev := &device{}
	p := newPool(t, 4<<20, 0)
	a := p.Arena(dev)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for i := range 200 {
				if r, err := a.Alloc(1 + i*1000); err == nil {
					_ = r.Free()
				}
			}
		})
	}
	wg.Wait()
	require.Zero(t, p.Stats().Used)
	require.LessOrEqual(t, p.Stats().Reserved, int64(4<<20))
	require.NoError(t, a.Close())
	require.Zero(t, dev.bytes())
}

// An arena that is closed while Trim, or an arena that needs room, deregisters memory of it is
// closed after that: its domain has no memory then.
func TestCloseBehindTrim(t *testing.T) {
	const size = 2 << 20
	for name, trim := range map[string]func(p *Pool) error{
		"idle": func(p *Pool) error {
			return errors.Join(p.Trim(time.Unix(1000, 0)), p.Trim(time.Unix(1000, 0).Add(trimEvery)))
		},
		"room": func(p *Pool) error {
			other := p.Arena(&device{})
			r, err := other.Alloc(2 * size)
			return errors.Join(err, r.Free(), other.Close())
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				dev := &device{}
				p := newPool(t, 2*size, 0)
				a := p.Arena(dev)
				var held []*Region
				for range 2 {
					r, err := a.Alloc(size)
					require.NoError(t, err)
					held = append(held, r)
				}
				for _, r := range held {
					require.NoError(t, r.Free())
				}
				under, done := make(chan struct{}), make(chan struct{})
				var slow atomic.Bool
				dev.slow = func() {
					if !slow.Swap(true) { // the first only
						close(under)
						<-done
					}
				}
				var calls sync.WaitGroup
				calls.Go(func() { require.NoError(t, trim(p)) })
				<-under
				calls.Go(func() {
					require.NoError(t, a.Close())
					require.Zero(t, dev.bytes())
				})
				synctest.Wait()
				close(done)
				calls.Wait()
			})
		})
	}
}

// The arenas of one owner have one quota, whatever other arenas there are.
func TestOwnerQuota(t *testing.T) {
	dev := &device{}
	p := newPool(t, 4<<20, 2<<20)
	a1, a2, b, c := p.ArenaOf("a", dev), p.ArenaOf("a", dev), p.ArenaOf("b", dev), p.Arena(dev)
	take := func(a *Arena) *Region {
		t.Helper()
		r, err := a.Alloc(1 << 20)
		require.NoError(t, err)
		return r
	}
	first := take(a1)
	take(a2)
	for _, a := range []*Arena{a1, a2} {
		_, err := a.Alloc(1)
		require.ErrorIs(t, err, ErrNoMemory)
	}
	require.Equal(t, uint64(2), p.Stats().RefusedQuota)
	take(b)
	last := take(c)
	all := p.Owners()
	require.Equal(t, ArenaStats{Reserved: 2 << 20, Used: 2 << 20, Regions: 2}, all["a"])
	require.Equal(t, ArenaStats{Reserved: 1 << 20, Used: 1 << 20, Regions: 1}, all["b"])
	require.Len(t, all, 3)

	// What lies empty in one arena of the owner makes room in another.
	require.NoError(t, first.Free())
	take(a2)
	require.Equal(t, int64(2<<20), p.Owners()["a"].Reserved)

	// An owner is known for as long as it has an arena.
	require.NoError(t, a1.Close())
	require.NoError(t, a1.Close())
	require.Contains(t, p.Owners(), any("a"))
	require.NoError(t, last.Free())
	require.NoError(t, c.Close())
	require.Len(t, p.Owners(), 2)
}
