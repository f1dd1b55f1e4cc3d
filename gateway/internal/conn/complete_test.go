package conn

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/ebpf"
	"github.com/smcgw/smcgw/gateway/host"
	life "github.com/smcgw/smcgw/gateway/internal/flow"
	"github.com/smcgw/smcgw/lab/entries"
	"github.com/smcgw/smcgw/negotiate"
)

// lateAnswer is a host on which the listener's answer gets to the application right behind
// a look at it, unless the programs drop it.
type lateAnswer struct {
	*entries.Table
	passed bool
}

func (s *lateAnswer) AppConnected(t ebpf.Tuple) (bool, error) {
	was := s.passed
	e, err := s.Flow(t)
	s.passed = was || err == nil && e.State == ebpf.StateCompleting
	return was, nil
}

// noneWait is a listener to which nothing comes.
type noneWait struct{ host.LegListener }

func (noneWait) Arrived(then func()) { then() }

// noDatagrams is a gateway that carries none.
type noDatagrams struct{ Datagrams }

func (noDatagrams) News(ebpf.Tuple, uint16, [16]byte) {}

// completing is a connection whose client has read ACCEPT and waits for its application.
func completing(t *testing.T, answered bool) (*pairConn, *lateAnswer) {
	p := newPair(t)
	a, b := newFakeWires(1<<20, 1<<20)
	c := p.begin(t, a, b)
	c.meet(t, negotiate.CarrierSHM)
	f, hosts := c.flow[0], &lateAnswer{Table: p.steer[0], passed: answered}
	f.env.Steering, f.env.Accepting, f.env.Datagrams = hosts, noneWait{}, noDatagrams{}
	client, _, accept := c.accepted(t)
	f.env.Work.Add(1)
	f.call(func() {
		f.leg.reset()
		closeAll(f.carries) // it is to be on the relay
		f.leg, f.carries = nil, nil
		p.steer[0].Put(ebpf.Flow{Tuple: ebpf.Tuple(f.Tuple), ISN: f.ISN, State: ebpf.StateNegotiating})
		n := f.newClient(client)
		f.setNegotiator(&n.negotiator)
		f.core.Negotiates()
		n.begin(client.Receive(time.Now(), accept))
		require.Equal(t, life.Completing, f.core.Phase())
	})
	return c, hosts
}

// TestFallsBackUnanswered: a connection whose application is late falls back only when the
// answer that makes connect() return cannot come any more.
func TestFallsBackUnanswered(t *testing.T) {
	c, hosts := completing(t, false)
	f := c.flow[0]
	require.Eventually(t, f.isBuried, patience, time.Millisecond)
	require.Equal(t, life.Released, f.state())
	require.Equal(t, "client_gone", f.Info(time.Now()).Reason)
	require.False(t, hosts.passed, "the application is connected, and meets a reset")
	c.flow[1].call(c.flow[1].replaced)
	c.over(t)
	c.closeApps()
	c.p.empty(t)
}

// TestKeepsAnswered: one whose connect() has returned is left to the listener.
func TestKeepsAnswered(t *testing.T) {
	c, _ := completing(t, true)
	f := c.flow[0]
	f.call(func() {
		require.True(t, f.takesBack())
		e, err := c.p.steer[0].Flow(ebpf.Tuple(f.Tuple))
		require.NoError(t, err)
		require.Equal(t, ebpf.StateCompleting, e.State)
		f.replaced()
	})
	c.flow[1].call(c.flow[1].replaced)
	c.over(t)
	c.closeApps()
	c.p.empty(t)
}

// TestCancelBesideAnEnd: a handshake that ends in the turn in which it is cancelled has ended,
// once, and so has one that is cancelled twice.
func TestCancelBesideAnEnd(t *testing.T) {
	for name, beside := range map[string]func(*Flow){
		"another cancel": func(f *Flow) { f.drain(negotiate.ReasonOff) },
		"its end": func(f *Flow) {
			c, _ := clientOf(f.hs)
			f.hs.happened(c.AppFailed)
		},
	} {
		t.Run(name, func(t *testing.T) {
			c, _ := completing(t, false)
			f := c.flow[0]
			f.call(func() {
				f.drain(negotiate.ReasonOff)
				beside(f)
			})
			waitBuried(t, f)
			f.call(func() {}) // behind what was posted
			require.Zero(t, c.p.g[0].Panics())
			c.flow[1].call(c.flow[1].replaced)
			c.over(t)
			c.closeApps()
			c.p.empty(t)
		})
	}
}
