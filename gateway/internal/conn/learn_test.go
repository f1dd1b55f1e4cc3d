package conn

import (
	"log/slog"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/ebpf"
	"github.com/smcgw/smcgw/gateway/admin"
	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/internal/auto"
	life "github.com/smcgw/smcgw/gateway/internal/flow"
	"github.com/smcgw/smcgw/negotiate"
)

// noServices is a steering that keeps nothing of what was learned.
type noServices struct{}

func (noServices) Services() ([]ebpf.Service, error)       { return nil, nil }
func (noServices) SetNear(netip.Addr, time.Duration) error { return nil }
func (noServices) SetService(ebpf.Service) error           { return nil }
func (noServices) FlushServices() (int, error)             { return 0, nil }

// carriedByShm has a flow that has nothing look like one that is carried.
func (f *Flow) carriedByShm() {
	f.call(func() {
		f.core.CarriedBy(life.ByLink)
		f.show(func(v *view) { v.carrier = config.CarrierShm })
		f.noted()
	})
}

// autoFlow is a carried flow of g to port 80 of a service, selected by auto.
func autoFlow(g *fakeGateway, port uint16) *Flow {
	f := bareFlow(g, config.SideClient, port)
	f.seen = new(auto.Seen)
	f.carriedByShm()
	return f
}

// TestLearn: what connections do reaches the learner once, of running ones too.
func TestLearn(t *testing.T) {
	g := newPair(t).g[0]
	g.Auto = auto.NewBook(noServices{}, time.Minute, false, slog.New(slog.DiscardHandler))
	a, b := autoFlow(g, 2000), autoFlow(g, 2001)
	a.tx.Store(40)
	a.reads.Store(1)
	look := func(now time.Time) {
		a.Learn(now)
		b.Learn(now)
		g.Auto.Compare(now)
	}
	now := time.Now()
	for range 3 {
		look(now)
	}
	list := g.Auto.List(now)
	require.Len(t, list, 1)
	require.Equal(t, admin.ServiceInfo{
		Address: netip.MustParseAddr("10.0.0.2"), Port: 80, Verdict: admin.VerdictSampling, Connections: 2, Bytes: 40, Moves: 1,
		BytesPerConnection: 20, BytesPerMove: 40, BytesPerSecond: list[0].BytesPerSecond, Score: list[0].Score, Why: list[0].Why,
	}, list[0])
	a.tx.Add(600)
	a.rx.Add(1200)
	a.reads.Add(300)
	a.writes.Add(300)
	for range 2 {
		look(now.Add(time.Second))
	}
	list = g.Auto.List(now.Add(time.Second))
	require.Equal(t, admin.VerdictNative, list[0].Verdict)
	require.EqualValues(t, 1840, list[0].Bytes, "nothing is counted twice")
	require.Contains(t, list[0].Why, "601 moves of 2 connections")

	b.rx.Add(1 << 32)
	b.writes.Add(1 << 14)
	b.call(func() { b.do(b.core.Aborts(negotiate.ReasonAppReset, false)) })
	require.Eventually(t, func() bool { return g.Auto.List(time.Now())[0].Verdict == admin.VerdictCarry }, patience, time.Millisecond, "the end of a connection tells too")
	a.call(func() { a.abort(negotiate.ReasonDrained, false) })
	waitBuried(t, a)
}

// TestLearnIgnores: connections of other rules, and those that are not carried yet.
func TestLearnIgnores(t *testing.T) {
	g := newPair(t).g[0]
	g.Auto = auto.NewBook(noServices{}, time.Minute, false, slog.New(slog.DiscardHandler))
	other := bareFlow(g, config.SideServer, 2000)
	other.carriedByShm()
	early := bareFlow(g, config.SideClient, 2001)
	early.seen = new(auto.Seen)
	for _, f := range []*Flow{other, early} {
		f.Learn(time.Now())
		f.call(func() { f.abort(negotiate.ReasonDrained, false) })
		waitBuried(t, f)
	}
	require.Empty(t, g.Auto.List(time.Now()))
	g.Auto = nil
	autoFlow(g, 2002).Learn(time.Now())
}
