package carrier

import (
	"context"
	"errors"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/negotiate"
	"github.com/smcgw/smcgw/verbs"
	"github.com/smcgw/smcgw/verbs/hw/rdmacm"
)

// TestCheckEndpoint: a queue pair counts only at the end of the path, and where its partition and
// ours let packets pass.
func TestCheckEndpoint(t *testing.T) {
	peer := negotiate.IBEndpoint{GID: ibGID(2), LID: 7, PKey: 0x8005}
	for name, c := range map[string]struct {
		own    uint16
		path   func(*rdmacm.Path)
		change func(*negotiate.IBEndpoint)
		want   error
	}{
		"the peer":            {own: 0x8005},
		"we are limited":      {own: 0x0005},
		"the peer is limited": {own: 0x8005, change: func(e *negotiate.IBEndpoint) { e.PKey = 5 }},
		"both are":            {own: 0x0005, change: func(e *negotiate.IBEndpoint) { e.PKey = 5 }, want: errPartition},
		"other partition":     {own: 0x8006, want: errPartition},
		"other LID":           {own: 0x8005, change: func(e *negotiate.IBEndpoint) { e.LID++ }, want: errOtherPath},
		"other GID":           {own: 0x8005, change: func(e *negotiate.IBEndpoint) { e.GID[15]++ }, want: errOtherPath},
		"behind a router": {
			own: 0x8005, path: func(p *rdmacm.Path) { p.HopLimit = 64 },
			change: func(e *negotiate.IBEndpoint) { e.LID++ },
		},
		"other GID behind a router": {
			own: 0x8005, path: func(p *rdmacm.Path) { p.HopLimit = 64 },
			change: func(e *negotiate.IBEndpoint) { e.GID[0]++ }, want: errOtherPath,
		},
	} {
		t.Run(name, func(t *testing.T) {
			p, at := ibPath, peer
			if c.path != nil {
				c.path(&p)
			}
			if c.change != nil {
				c.change(&at)
			}
			err := checkEndpoint(&p, c.own, &at)
			require.ErrorIs(t, err, c.want)
			require.Equal(t, errors.Is(c.want, errOtherPath), errors.Is(err, ErrNoPath), "what lasts, and what may pass")
		})
	}
}

func TestPathAddress(t *testing.T) {
	p := ibPath
	require.Equal(t, verbs.AHAttr{DLID: 7, SL: 3, Port: 1}, pathAddress(&p, 3, 4, false), "within the subnet")
	p.SLID = 5
	require.EqualValues(t, 2, pathAddress(&p, 3, 4, false).SrcPathBits)
	require.Equal(t, verbs.AHAttr{
		DGID: ibGID(2), DLID: 7, SL: 3, SrcPathBits: 2, SGIDIndex: 4, FlowLabel: 0x1234, TrafficClass: 0x20, Port: 1,
	}, pathAddress(&p, 3, 4, true), "a port that needs a global header")
	p.SLID, p.HopLimit = 3, 64
	require.Equal(t, verbs.AHAttr{
		DGID: ibGID(2), DLID: 7, SL: 3, SGIDIndex: 4, FlowLabel: 0x1234, HopLimit: 64, TrafficClass: 0x20, Port: 1,
	}, pathAddress(&p, 3, 4, false))
}

func TestBeginsAt(t *testing.T) {
	p := ibPath
	require.True(t, beginsAt(&p, ibGID(1), 3))
	require.True(t, beginsAt(&p, ibGID(1), 2), "a LID of several")
	require.False(t, beginsAt(&p, ibGID(1), 4))
	require.False(t, beginsAt(&p, ibGID(3), 3))
	p.SLID = 0
	require.False(t, beginsAt(&p, ibGID(1), 0), "no LID yet")
	p.SLID = 0xc000
	require.False(t, beginsAt(&p, ibGID(1), 0xc000), "a multicast LID")
}

func TestCheckPartition(t *testing.T) {
	require.NoError(t, checkPartition(0x8005))
	require.NoError(t, checkPartition(5))
	require.ErrorIs(t, checkPartition(0), ErrNoPath)
	require.ErrorIs(t, checkPartition(0x8000), ErrNoPath)
}

func TestSamePath(t *testing.T) {
	other := ibPath
	other.Rate, other.PacketLifetime = 1, 1
	require.True(t, samePath(ibPath, other))
	other.SL++
	require.False(t, samePath(ibPath, other))
}

var (
	ibHere  = netip.MustParseAddr("10.77.0.1")
	ibThere = netip.MustParseAddr("10.77.0.2")
	ibGID   = func(last byte) verbs.GID { return verbs.GID{0: 0xfe, 1: 0x80, 15: last} }
	// ibPath is a path as in TestPathOnInfiniBand of package rdmacm.
	ibPath = rdmacm.Path{
		SGID: ibGID(1), DGID: ibGID(2), SLID: 3, DLID: 7, PKey: 0x8005, PKeyIndex: 2, SL: 3, MTU: verbs.MTU2048, Rate: 7,
		FlowLabel: 0x1234, TrafficClass: 0x20, PacketLifetime: 18,
	}
	errRoute = errors.New("ROUTE_ERROR")
)

// subnetAdmin is a subnet administrator that takes its time.
type subnetAdmin struct {
	takes time.Duration
	err   error
	asked atomic.Int32
}

func (a *subnetAdmin) resolve(ctx context.Context, _, _ netip.Addr) (rdmacm.Path, error) {
	a.asked.Add(1)
	select {
	case <-time.After(a.takes):
		return ibPath, a.err
	case <-ctx.Done():
		return rdmacm.Path{}, ctx.Err()
	}
}

func within(d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	context.AfterFunc(ctx, cancel)
	return ctx
}

// TestPathsAreKept: an answer holds for a while, and one without a path for a shorter one.
func TestPathsAreKept(t *testing.T) {
	for _, c := range []struct {
		err  error
		kept time.Duration
	}{{nil, pathKept}, {errRoute, pathMissingKept}} {
		synctest.Test(t, func(t *testing.T) {
			a := &subnetAdmin{takes: time.Millisecond, err: c.err}
			p := newIBPaths(a.resolve)
			defer p.close()
			ask := func() {
				got, err := p.to(within(time.Second), ibHere, ibThere)
				require.Equal(t, ibPath, got)
				if c.err == nil {
					require.NoError(t, err)
					return
				}
				require.ErrorIs(t, err, c.err)
				require.ErrorIs(t, err, ErrNoPath)
			}
			ask()
			time.Sleep(c.kept - time.Millisecond)
			ask()
			require.EqualValues(t, 1, a.asked.Load())
			time.Sleep(2 * time.Millisecond)
			ask()
			require.EqualValues(t, 2, a.asked.Load())
			p.doubt(ibThere, ibHere)
			ask()
			require.EqualValues(t, 2, a.asked.Load(), "another pair")
			p.doubt(ibHere, ibThere)
			ask()
			require.EqualValues(t, 3, a.asked.Load())
			p.forget()
			ask()
			require.EqualValues(t, 4, a.asked.Load())
		})
	}
}

// TestPathsAreLate: those that wait give up, the question goes on, and is asked once for all.
func TestPathsAreLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &subnetAdmin{takes: time.Second}
		p := newIBPaths(a.resolve)
		defer p.close()
		var all sync.WaitGroup
		for range 10 {
			all.Go(func() {
				_, err := p.to(within(50*time.Millisecond), ibHere, ibThere)
				require.ErrorIs(t, err, ErrNoPath)
			})
		}
		all.Wait()
		got, err := p.to(within(time.Second), ibHere, ibThere)
		require.NoError(t, err)
		require.Equal(t, ibPath, got)
		require.EqualValues(t, 1, a.asked.Load())
	})
}

// TestPathsForgottenUnderWay: an answer to what was asked before a change is not kept.
func TestPathsForgottenUnderWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &subnetAdmin{takes: time.Second}
		p := newIBPaths(a.resolve)
		defer p.close()
		_, err := p.to(within(time.Millisecond), ibHere, ibThere)
		require.ErrorIs(t, err, ErrNoPath)
		p.forget()
		time.Sleep(2 * time.Second)
		_, err = p.to(within(time.Millisecond), ibHere, ibThere)
		require.ErrorIs(t, err, ErrNoPath, "it is asked for again")
		require.EqualValues(t, 2, a.asked.Load())
	})
}

// TestPathsAreBounded: no more questions than pathsAskedMost are under way, no more answers than
// pathsMost are kept, and after Close there is none.
func TestPathsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &subnetAdmin{takes: time.Hour}
		p := newIBPaths(a.resolve)
		to := ibHere
		for range pathsAskedMost + 5 {
			to = to.Next()
			_, err := p.to(within(time.Millisecond), ibHere, to)
			require.ErrorIs(t, err, ErrNoPath)
		}
		require.EqualValues(t, pathsAskedMost, a.asked.Load())
		p.close()
		_, err := p.to(within(time.Second), ibHere, ibHere)
		require.ErrorIs(t, err, ErrNoPath)

		a = &subnetAdmin{}
		p = newIBPaths(a.resolve)
		defer p.close()
		for range pathsMost + 5 {
			to = to.Next()
			_, err := p.to(within(time.Second), ibHere, to)
			require.NoError(t, err)
			require.LessOrEqual(t, len(p.known), pathsMost)
			synctest.Wait()
		}
		require.Zero(t, p.asked)
		require.Len(t, p.known, 5)
	})
}

// TestKernelSubnets: a host without InfiniBand has no such port, and no path.
func TestKernelSubnets(t *testing.T) {
	var host subnet = kernelSubnets{}
	ibGID, err := host.gidOf(1)
	require.NoError(t, err)
	require.Zero(t, ibGID, "the loopback device")
	_, err = host.resolve(t.Context(), ibHere, ibThere)
	require.Error(t, err)
}
