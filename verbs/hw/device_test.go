package hw

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/verbs"
	"github.com/smcgw/smcgw/verbs/hw/hwtest"
	"github.com/smcgw/smcgw/verbs/hw/ibv"
)

func TestOpen(t *testing.T) {
	lib := newLibrary(t, 1)
	_, err := Open(Config{Library: lib})
	require.ErrorIs(t, err, verbs.ErrInvalid)
	_, err = Open(Config{Library: lib, Adapter: "fake0", Vectors: maxVectors + 1})
	require.ErrorIs(t, err, verbs.ErrInvalid)
	_, err = Open(Config{Library: lib, Adapter: "mlx5_0"})
	require.ErrorIs(t, err, ErrNoDevice)
	_, err = Open(Config{Library: lib, Adapter: "fake0", Port: 2})
	require.ErrorIs(t, err, ErrNoDevice)

	d := openFake(t, lib, "fake0", func(c *Config) { c.Vectors = 5 })
	require.Equal(t, "fake0", d.Name())
	require.Equal(t, "unknown", d.Attr().Provider)
	require.Equal(t, 5, d.Attr().Vectors)
	require.Equal(t, 512, d.Attr().MaxInline)
	ops := d.Attr().Ops
	require.Equal(t, verbs.OpWriteImm|verbs.OpUC|verbs.OpUD|verbs.OpAtomic,
		ops&(verbs.OpWriteImm|verbs.OpUC|verbs.OpUD|verbs.OpAtomic|verbs.OpGSI))
	port := d.Port()
	require.EqualValues(t, 4791, port.UDPPort)
	require.True(t, port.GIDs[0].Empty())
	require.Equal(t, hwtest.GIDIndex, verbs.GIDIndex(port.GIDs, port.GIDs[hwtest.GIDIndex].GID, 1))
}

// What an adapter lacks is not claimed, and what lacks the essential is refused.
func TestUnsuitable(t *testing.T) {
	lib := newLibrary(t, 1, func(l *hwtest.Library) {
		l.Attr = func(a *ibv.DeviceAttr) { a.Transport = int(TransportIWARP) }
	})
	_, err := Open(Config{Library: lib, Adapter: "fake0"})
	require.ErrorIs(t, err, ErrUnsuitable)
	require.ErrorContains(t, err, "iWARP")
	lib.Attr = func(a *ibv.DeviceAttr) { a.Atomic, a.MaxQPWR = false, 1<<20 }
	d := openFake(t, lib, "fake0")
	require.Zero(t, d.Attr().Ops&verbs.OpAtomic)
	require.Equal(t, maxWR, d.Attr().MaxQPWR)
}

// The library's context lives until the last object was closed.
func TestContextOutlivesDevice(t *testing.T) {
	lib := newLibrary(t, 1)
	d, err := Open(Config{Library: lib, Adapter: "fake0"})
	require.NoError(t, err)
	pd, err := d.AllocPD()
	require.NoError(t, err)
	mr, err := pd.AllocMR(4096, verbs.AccessLocalWrite)
	require.NoError(t, err)
	require.NoError(t, d.Close())
	require.NoError(t, d.Close(), "twice")
	_, err = d.AllocPD()
	require.ErrorIs(t, err, verbs.ErrClosed)
	_, err = pd.AllocMR(4096, verbs.AccessLocalWrite)
	require.ErrorIs(t, err, verbs.ErrClosed)
	require.Equal(t, verbs.PortDown, d.Port().State)
	mr.Bytes()[0] = 1
	require.ErrorIs(t, pd.Close(), verbs.ErrBusy)
	require.NoError(t, mr.Close())
	require.Zero(t, lib.Calls("fake0", "Close"))
	require.NoError(t, pd.Close())
	require.Equal(t, 1, lib.Calls("fake0", "Close"))
}

func nextEvent(t *testing.T, d *Device) verbs.AsyncEvent {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	e, err := d.Async().Get(ctx)
	require.NoError(t, err)
	return e
}

func TestEvents(t *testing.T) {
	lib := newLibrary(t, 1)
	d := openFake(t, lib, "fake0")
	for _, typ := range []verbs.EventType{verbs.EventPortErr, verbs.EventPortActive, verbs.EventGIDChange, verbs.EventDeviceFatal} {
		lib.Raise("fake0", typ)
		require.Equal(t, verbs.AsyncEvent{Type: typ}, nextEvent(t, d))
	}
	d.raise(ibv.Event{Type: verbs.EventPortErr, Port: 2}) // another port's
	d.raise(ibv.Event{Type: verbs.EventQPFatal, ID: 1 << 40})
	_, ok := d.Async().Poll()
	require.False(t, ok, "an event of nothing here")
	c, err := d.CreateCQ(verbs.CQAttr{Depth: 1})
	require.NoError(t, err)
	d.raise(ibv.Event{Type: verbs.EventCQErr, ID: c.(*cq).id})
	require.Equal(t, verbs.AsyncEvent{Type: verbs.EventCQErr, CQ: c}, nextEvent(t, d))
	_, err = c.Poll(make([]verbs.WC, 1))
	require.ErrorIs(t, err, verbs.ErrCQOverrun)
	require.EqualValues(t, 1, d.Stats().Overruns)
	require.NoError(t, c.Close())
}

// An error of the library is one that users of package verbs know.
func TestFailure(t *testing.T) {
	require.NoError(t, failure("nothing", nil))
	for errno, want := range map[unix.Errno]error{
		unix.EINVAL: verbs.ErrInvalid, unix.ENOMEM: verbs.ErrNoMemory, unix.EBUSY: verbs.ErrBusy,
		unix.EOPNOTSUPP: verbs.ErrNotSupported, unix.EIO: verbs.ErrClosed,
	} {
		err := failure("object", errno)
		require.ErrorIs(t, err, want)
		require.ErrorIs(t, err, errno)
	}
}

// Memory that was refused for the limit of locked memory names the limit, once.
func TestFailureNamesMemlock(t *testing.T) {
	var before unix.Rlimit
	require.NoError(t, unix.Getrlimit(unix.RLIMIT_MEMLOCK, &before))
	defer func() { require.NoError(t, unix.Setrlimit(unix.RLIMIT_MEMLOCK, &before)) }()
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_MEMLOCK, &unix.Rlimit{Cur: 64 << 10, Max: before.Max}))
	err := failure("memory", unix.ENOMEM)
	require.ErrorIs(t, err, ErrMemlock)
	require.ErrorIs(t, err, verbs.ErrNoMemory)
	require.Contains(t, err.Error(), "64 KiB")
	require.Equal(t, 1, strings.Count(err.Error(), "RLIMIT_MEMLOCK"), err)
	require.NotErrorIs(t, failure("queue", unix.EBUSY), ErrMemlock)
}

// No library is needed to find out that there is none.
func TestPorts(t *testing.T) {
	for _, layer := range []verbs.LinkLayer{verbs.LinkLayerEthernet, verbs.LinkLayerInfiniBand} {
		names, err := Ports(layer)
		if err != nil {
			require.True(t, errors.Is(err, ErrLibraryAbsent) || errors.Is(err, verbs.ErrNotSupported), err)
			continue
		}
		t.Logf("%v ports of this host: %q", layer, names)
	}
}

// TestSubnet: on InfiniBand a queue pair is reached by the LID of its port, in a partition of
// the port's table.
func TestSubnet(t *testing.T) {
	join := func(l *hwtest.Library) {
		l.Join("fake0", hwtest.SubnetPort{GID: verbs.GID{0: 0xfe, 15: 1}, LID: 3, PKeys: []uint16{0xffff, 0x8005}})
		l.Join("fake1", hwtest.SubnetPort{GID: verbs.GID{0: 0xfe, 15: 2}, LID: 7, PKeys: []uint16{0xffff, 0, 5}})
	}
	e := newEnds(t, join)
	for i, d := range []*end{e.a, e.b} {
		port := d.dev.Port()
		require.Equal(t, verbs.LinkLayerInfiniBand, port.LinkLayer)
		require.Equal(t, []uint16{3, 7}[i], port.LID)
		require.Zero(t, port.UDPPort)
		k, err := d.dev.PKey(i + 1)
		require.NoError(t, err)
		require.Equal(t, []uint16{0x8005, 5}[i], k)
		_, err = d.dev.PKey(port.PKeys)
		require.ErrorIs(t, err, verbs.ErrInvalid)
		require.NoError(t, verbs.Init(d.qp, verbs.AccessLocalWrite|verbs.AccessRemoteWrite))
	}
	for i, d := range []*end{e.a, e.b} {
		peer := []*end{e.b, e.a}[i]
		attr := verbs.ConnectAttr(peer.qp.num)
		attr.AH, attr.PKeyIndex, attr.PathMTU = verbs.AHAttr{DLID: []uint16{7, 3}[i], Port: 1}, uint16(i+1), verbs.MTU1024
		require.NoError(t, verbs.Connect(d.qp, attr))
	}
	require.NoError(t, e.a.qp.PostSend(e.write(1, 64)))
	e.until("the WRITE completes", func() bool { return len(e.a.wcs) == 1 })
	require.Equal(t, verbs.WCSuccess, e.a.wcs[0].Status)
	require.NoError(t, e.a.dev.Close())
	_, err := e.a.dev.PKey(0)
	require.ErrorIs(t, err, verbs.ErrClosed)
}
