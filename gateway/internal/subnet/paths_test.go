package subnet

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
	here  = netip.MustParseAddr("10.77.0.1")
	there = netip.MustParseAddr("10.77.0.2")
	gid   = func(last byte) verbs.GID { return verbs.GID{0: 0xfe, 1: 0x80, 15: last} }
	// found is a path as in TestPathOnInfiniBand of package rdmacm.
	found = rdmacm.Path{
		SGID: gid(1), DGID: gid(2), SLID: 3, DLID: 7, PKey: 0x8005, PKeyIndex: 2, SL: 3, MTU: verbs.MTU2048, Rate: 7,
		FlowLabel: 0x1234, TrafficClass: 0x20, PacketLifetime: 18,
	}
	errRoute = errors.New("ROUTE_ERROR")
)

// admin is a subnet administrator that takes its time.
type admin struct {
	takes time.Duration
	err   error
	asked atomic.Int32
}

func (a *admin) resolve(ctx context.Context, _, _ netip.Addr) (rdmacm.Path, error) {
	a.asked.Add(1)
	select {
	case <-time.After(a.takes):
		return found, a.err
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
	}{{nil, keptFound}, {errRoute, keptMissing}} {
		synctest.Test(t, func(t *testing.T) {
			a := &admin{takes: time.Millisecond, err: c.err}
			p := New(a.resolve)
			defer p.Close()
			ask := func() {
				got, err := p.To(within(time.Second), here, there)
				require.Equal(t, found, got)
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
			p.Doubt(there, here)
			ask()
			require.EqualValues(t, 2, a.asked.Load(), "another pair")
			p.Doubt(here, there)
			ask()
			require.EqualValues(t, 3, a.asked.Load())
			p.Forget()
			ask()
			require.EqualValues(t, 4, a.asked.Load())
		})
	}
}

// TestPathsAreLate: those that wait give up, the question goes on, and is asked once for all.
func TestPathsAreLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &admin{takes: time.Second}
		p := New(a.resolve)
		defer p.Close()
		var all sync.WaitGroup
		for range 10 {
			all.Go(func() {
				_, err := p.To(within(50*time.Millisecond), here, there)
				require.ErrorIs(t, err, ErrNoPath)
			})
		}
		all.Wait()
		got, err := p.To(within(time.Second), here, there)
		require.NoError(t, err)
		require.Equal(t, found, got)
		require.EqualValues(t, 1, a.asked.Load())
	})
}

// TestPathsForgottenUnderWay: an answer to what was asked before a change is not kept.
func TestPathsForgottenUnderWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &admin{takes: time.Second}
		p := New(a.resolve)
		defer p.Close()
		_, err := p.To(within(time.Millisecond), here, there)
		require.ErrorIs(t, err, ErrNoPath)
		p.Forget()
		time.Sleep(2 * time.Second)
		_, err = p.To(within(time.Millisecond), here, there)
		require.ErrorIs(t, err, ErrNoPath, "it is asked for again")
		require.EqualValues(t, 2, a.asked.Load())
	})
}

// TestPathsAreBounded: no more questions than askedMost are under way, no more answers than
// pathsMost are kept, and after Close there is none.
func TestPathsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &admin{takes: time.Hour}
		p := New(a.resolve)
		to := here
		for range askedMost + 5 {
			to = to.Next()
			_, err := p.To(within(time.Millisecond), here, to)
			require.ErrorIs(t, err, ErrNoPath)
		}
		require.EqualValues(t, askedMost, a.asked.Load())
		p.Close()
		_, err := p.To(within(time.Second), here, here)
		require.ErrorIs(t, err, ErrNoPath)

		a = &admin{}
		p = New(a.resolve)
		defer p.Close()
		for range pathsMost + 5 {
			to = to.Next()
			_, err := p.To(within(time.Second), here, to)
			require.NoError(t, err)
			require.LessOrEqual(t, len(p.known), pathsMost)
			synctest.Wait()
		}
		require.Zero(t, p.asked)
		require.Len(t, p.known, 5)
	})
}
