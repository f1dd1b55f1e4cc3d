package hw

import (
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/verbs"
	"github.com/smcgw/smcgw/verbs/hw/hwtest"
	"github.com/smcgw/smcgw/verbs/hw/ibv"
)

// stuckLibrary opens adapters that say of objects that they cannot be ended, and of the
// port that it cannot be asked.
type stuckLibrary struct {
	*hwtest.Library
	ends, port atomic.Pointer[unix.Errno] // nil: no failure
}

type stuckContext struct {
	ibv.Context
	lib *stuckLibrary
}

func openStuck(t *testing.T) (*stuckLibrary, *Device) {
	lib := &stuckLibrary{Library: newLibrary(t, 1)}
	return lib, openFake(t, lib.Library, "fake0", func(c *Config) { c.Library = lib })
}

func (l *stuckLibrary) Open(name string) (ibv.Context, error) {
	ctx, err := l.Library.Open(name)
	return &stuckContext{ctx, l}, err
}

// instead returns err, or the failure that is to be seen.
func instead(failure *atomic.Pointer[unix.Errno], err error) error {
	if no := failure.Load(); no != nil {
		return *no
	}
	return err
}

func (c *stuckContext) DeregMR(h ibv.MR) error { return instead(&c.lib.ends, c.Context.DeregMR(h)) }

func (c *stuckContext) DestroyQP(h ibv.QP) error { return instead(&c.lib.ends, c.Context.DestroyQP(h)) }

func (c *stuckContext) DestroyCQ(h ibv.CQ) error { return instead(&c.lib.ends, c.Context.DestroyCQ(h)) }

func (c *stuckContext) DeallocPD(h ibv.PD) error { return instead(&c.lib.ends, c.Context.DeallocPD(h)) }

func (c *stuckContext) QueryPort(n uint8) (verbs.PortAttr, error) {
	p, err := c.Context.QueryPort(n)
	return p, instead(&c.lib.port, err)
}

// Memory of Go's heap that the adapter does not let go stays pinned when nothing knows it
// any more.
func TestMemoryThatIsNotLetGo(t *testing.T) {
	lib, d := openStuck(t)
	p, err := d.AllocPD()
	require.NoError(t, err)
	no := unix.EIO
	func() {
		m, err := p.RegMR(make([]byte, 1<<16), verbs.AccessLocalWrite)
		require.NoError(t, err)
		lib.ends.Store(&no)
		require.ErrorIs(t, m.Close(), unix.EIO)
		require.NoError(t, m.Close(), "twice")
	}()
	for range 5 { // a pin that is collected is fatal
		runtime.GC()
		time.Sleep(10 * time.Millisecond)
	}
	require.EqualValues(t, 1, d.Stats().MRs)
	require.ErrorIs(t, p.Close(), verbs.ErrBusy)
	lib.ends.Store(nil)
	d.use.mrs.Add(-1) // the adapter has let it go
	p.(*pd).users.Release()
	require.NoError(t, p.Close())
}

// A queue pair that the adapter does not let go keeps its numbers, its room and its domain.
func TestQueuePairThatIsNotLetGo(t *testing.T) {
	lib, d := openStuck(t)
	p, err := d.AllocPD()
	require.NoError(t, err)
	c, err := d.CreateCQ(verbs.CQAttr{Depth: 100})
	require.NoError(t, err)
	of := &end{dev: d, pd: p, cq: c.(*cq)}
	q := of.newQP(t, verbs.QPTRC)
	no := unix.EINVAL
	lib.ends.Store(&no)
	require.ErrorIs(t, q.Close(), unix.EINVAL)
	lib.ends.Store(nil)
	require.EqualValues(t, 1, d.Stats().QPs)
	require.ErrorIs(t, p.Close(), verbs.ErrBusy)
	require.ErrorIs(t, c.Close(), verbs.ErrBusy)
	next := of.newQP(t, verbs.QPTRC)
	require.NotEqual(t, q.sq.slot, next.sq.slot)
	require.NoError(t, next.Close())
	q.forget() // the adapter has let it go
	d.use.qps.Add(-1)
	q.unholdQueues()
	p.(*pd).users.Release()
	require.NoError(t, c.Close())
	require.NoError(t, p.Close())
}

// A device that the driver has taken away has let everything go.
func TestDeviceTakenAway(t *testing.T) {
	lib, d := openStuck(t)
	p, err := d.AllocPD()
	require.NoError(t, err)
	m, err := p.RegMR(make([]byte, 1<<16), verbs.AccessLocalWrite)
	require.NoError(t, err)
	c, err := d.CreateCQ(verbs.CQAttr{Depth: 100})
	require.NoError(t, err)
	q := (&end{dev: d, pd: p, cq: c.(*cq)}).newQP(t, verbs.QPTRC)
	no := unix.EIO
	lib.ends.Store(&no)
	lib.port.Store(&no)
	require.NoError(t, q.Close())
	require.NoError(t, m.Close())
	require.NoError(t, p.Close())
	require.NoError(t, c.Close())
}

// A port that cannot be asked once is as it was, and down when that fails again.
func TestPortThatCannotBeAsked(t *testing.T) {
	lib, d := openStuck(t)
	before := d.Port()
	require.Equal(t, verbs.PortActive, before.State)
	no := unix.ENOMEM
	lib.port.Store(&no)
	require.Equal(t, before, d.Port())
	require.Equal(t, verbs.PortAttr{State: verbs.PortDown}, d.Port())
	lib.port.Store(nil)
	require.Equal(t, before, d.Port())
	lib.port.Store(&no)
	require.Equal(t, before, d.Port())
	require.NoError(t, d.Close())
	require.Equal(t, verbs.PortDown, d.Port().State)
}
