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
