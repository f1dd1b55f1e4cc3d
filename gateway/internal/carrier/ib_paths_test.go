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

	"github.com/smcgw/smcgw/verbs"
	"github.com/smcgw/smcgw/verbs/hw/rdmacm"
)

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
