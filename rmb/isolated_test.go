package rmb

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/verbs"
)

// registrar is a device that also registers memory it did not allocate.
type registrar struct {
	device
	keys   uint32
	live   map[uint32]*key
	regErr error
	endErr error        // of the close of a key
	slabs  verbs.Access // of the last slab
}

// key is a registration of a part of a slab.
type key struct {
	of  *registrar
	buf []byte
	id  uint32
}

func (r *registrar) AllocMR(size int, access verbs.Access) (verbs.MR, error) {
	r.slabs = access
	return r.device.AllocMR(size, Access)
}

func (r *registrar) RegMR(buf []byte, access verbs.Access) (verbs.MR, error) {
	if r.regErr != nil {
		return nil, r.regErr
	}
	if access != Access {
		return nil, errors.New("wrong access")
	}
	if r.live == nil {
		r.live = map[uint32]*key{}
	}
	r.keys++
	k := &key{of: r, buf: buf, id: r.keys}
	r.live[k.id] = k
	return k, nil
}

func (k *key) Bytes() []byte { return k.buf }
func (k *key) Addr() uint64  { return uint64(k.id) << 32 }
func (k *key) LKey() uint32  { return k.id }
func (k *key) RKey() uint32  { return k.id }
func (k *key) Close() error {
	if k.of.live[k.id] != k {
		return verbs.ErrClosed
	}
	if k.of.endErr != nil {
		return k.of.endErr
	}
	delete(k.of.live, k.id)
	return nil
}

// TestIsolatedRegionsHaveTheirOwnKeys: they are of one slab, which has no key
// for the peer, and a key ends with its region.
func TestIsolatedRegionsHaveTheirOwnKeys(t *testing.T) {
	dev := &registrar{}
	p := newPool(t, 1<<24, 0)
	a := p.IsolatedArena(dev)
	first, err := a.Alloc(1000)
	require.NoError(t, err)
	second, err := a.Alloc(1000)
	require.NoError(t, err)
	require.Equal(t, verbs.AccessLocalWrite, dev.slabs)
	require.NotEqual(t, first.RKey(), second.RKey())
	require.NotEqual(t, first.Addr(), second.Addr())
	require.Same(t, &first.Bytes()[0], &dev.live[first.RKey()].buf[0])
	require.Len(t, dev.live[first.RKey()].buf, 1000, "no byte beyond the region")

	require.NoError(t, first.Free())
	require.NotContains(t, dev.live, first.RKey())
	require.Contains(t, dev.live, second.RKey())
	again, err := a.Alloc(1000)
	require.NoError(t, err)
	require.Same(t, &first.Bytes()[0], &again.Bytes()[0])
	require.NotEqual(t, first.RKey(), again.RKey(), "the old key does not open the new owner's memory")

	require.ErrorIs(t, a.Close(), ErrBusy)
	require.NoError(t, errors.Join(second.Free(), again.Free(), again.Free()))
	require.NoError(t, a.Close())
	require.Empty(t, dev.live)
	require.Zero(t, dev.bytes())
}

// TestLocalRegionsHaveNoKeyOfTheirOwn: no peer writes there.
func TestLocalRegionsHaveNoKeyOfTheirOwn(t *testing.T) {
	dev := &registrar{}
	a := newPool(t, 1<<24, 0).IsolatedArena(dev)
	r, err := a.AllocLocal(1000)
	require.NoError(t, err)
	require.Empty(t, dev.live)
	require.NotZero(t, r.LKey())
	require.NoError(t, r.Free())
	require.NoError(t, a.Close())
}

// TestNoKeyIsNoMemory: a region that cannot be registered is freed.
func TestNoKeyIsNoMemory(t *testing.T) {
	dev := &registrar{regErr: verbs.ErrNoMemory}
	p := newPool(t, 1<<24, 0)
	a := p.IsolatedArena(dev)
	_, err := a.Alloc(1000)
	require.ErrorIs(t, err, ErrNoMemory)
	require.Zero(t, p.Stats().Regions)
	require.NoError(t, a.Close())
}

// TestKeyThatDoesNotEnd: the peer may still write by it, so the block is no other region's.
func TestKeyThatDoesNotEnd(t *testing.T) {
	dev := &registrar{endErr: verbs.ErrBusy}
	p := newPool(t, 1<<24, 0)
	a := p.IsolatedArena(dev)
	r, err := a.Alloc(1000)
	require.NoError(t, err)
	r.Quarantine()
	used := p.Stats()
	require.ErrorIs(t, r.Free(), verbs.ErrBusy)
	require.NoError(t, r.Free(), "twice")
	require.Equal(t, used, p.Stats(), "it stays reserved")
	next, err := a.AllocLocal(1000)
	require.NoError(t, err)
	require.NotSame(t, &r.Bytes()[0], &next.Bytes()[0])
	require.NoError(t, next.Free())
	require.ErrorIs(t, a.Close(), ErrBusy)
}

// TestBorrowedMemory: it has a key for as long as it is a region, keeps the arena open and takes nothing of the limit.
func TestBorrowedMemory(t *testing.T) {
	dev := &registrar{}
	p := newPool(t, 1<<20, 0)
	a := p.IsolatedArena(dev)
	buf := make([]byte, 2<<20)
	given := 0
	r, err := a.Borrow(buf, Access, func() { given++ })
	require.NoError(t, err)
	require.Same(t, &buf[0], &r.Bytes()[0])
	require.Contains(t, dev.live, r.RKey())
	st := p.Stats()
	require.Equal(t, [...]int64{0, 0, 1}, [...]int64{st.Reserved, st.Used, int64(st.Regions)})
	r.Quarantine()
	require.Zero(t, p.Stats().Quarantined)
	require.ErrorIs(t, a.Close(), ErrBusy)
	require.Zero(t, given)

	require.NoError(t, errors.Join(r.Free(), r.Free()))
	require.Equal(t, 1, given)
	require.Empty(t, dev.live)
	require.Zero(t, p.Stats().Regions)
	require.NoError(t, a.Close())
	_, err = a.Borrow(buf, Access, func() { given++ })
	require.ErrorIs(t, err, ErrClosed)
	require.Equal(t, 1, given)
}

// TestBorrowedMemoryStays: the peer may still write to what the device does not let go.
func TestBorrowedMemoryStays(t *testing.T) {
	dev := &registrar{endErr: verbs.ErrBusy}
	a := newPool(t, 1<<20, 0).IsolatedArena(dev)
	r, err := a.Borrow(make([]byte, 1000), Access, func() { t.Error("given back") })
	require.NoError(t, err)
	require.ErrorIs(t, r.Free(), verbs.ErrBusy)
	require.NoError(t, r.Free(), "twice")
	require.ErrorIs(t, a.Close(), ErrBusy)
}

// TestBorrowedInVain: what cannot be registered is no region.
func TestBorrowedInVain(t *testing.T) {
	p := newPool(t, 1<<20, 0)
	for _, a := range []*Arena{p.Arena(&device{}), p.IsolatedArena(&registrar{regErr: verbs.ErrNotSupported})} {
		_, err := a.Borrow(make([]byte, 1000), Access, func() { t.Error("given back") })
		require.ErrorIs(t, err, ErrNoMemory)
		require.ErrorIs(t, err, verbs.ErrNotSupported)
		require.Zero(t, p.Stats().Regions)
		require.NoError(t, a.Close())
	}
}
