package conn

import (
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/ebpf"
	life "github.com/smcgw/smcgw/gateway/internal/flow"
	"github.com/smcgw/smcgw/gateway/internal/host"
	"github.com/smcgw/smcgw/lab/twohosts"
	"github.com/smcgw/smcgw/negotiate"
)

// slowApp is a host on which a leg waits for its application, or none.
type slowApp struct {
	*twohosts.Table
	waits    atomic.Bool
	injected atomic.Int32
}

func (s *slowApp) LegWaits(ebpf.Tuple) (bool, error) { return s.waits.Load(), nil }

func (s *slowApp) InjectApp(pkt []byte) error {
	if s.injected.Add(1) == 1 {
		return syscall.EAGAIN // the first one is lost here
	}
	return s.Table.InjectApp(pkt)
}

// noneWait is a listener to which nothing comes.
type noneWait struct{ host.LegListener }

func (noneWait) Arrived(then func()) { then() }

// noDatagrams is a gateway that carries none.
type noDatagrams struct{ Datagrams }

func (noDatagrams) News(ebpf.Tuple, uint16, [16]byte) {}

// completing is a connection whose client has read ACCEPT and waits for its application.
func completing(t *testing.T, waits bool) (*pairConn, *slowApp) {
	p := newPair(t)
	a, b := newFakeWires(1<<20, 1<<20)
	c := p.begin(t, a, b)
	c.meet(t, negotiate.CarrierSHM)
	f, hosts := c.flow[0], &slowApp{Table: p.steer[0]}
	hosts.waits.Store(waits)
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
		assert.Equal(t, life.Completing, f.core.Phase())
	})
	return c, hosts
}

// TestHandsOverAgain: a connection whose application is late is handed over again, for the
// server's program has it. It falls back when the application has given up, whose kernel
// refuses what the listener says.
func TestHandsOverAgain(t *testing.T) {
	t.Parallel() // it waits
	c, hosts := completing(t, false)
	f := c.flow[0]
	require.Eventually(t, f.isBuried, patience, time.Millisecond)
	require.Equal(t, life.Released, f.state())
	require.Equal(t, "client_gone", f.Info(time.Now()).Reason)
	require.EqualValues(t, refusals+1, hosts.injected.Load(), "the hand-over, those again, and the bare SYN")
	c.flow[1].call(c.flow[1].replaced)
	c.over(t)
	c.closeApps()
	c.p.empty(t)
}

// TestKeepsWaiting: one whose leg waits is left to the kernel, until it is accepted.
func TestKeepsWaiting(t *testing.T) {
	t.Parallel() // it waits
	c, hosts := completing(t, true)
	f := c.flow[0]
	time.Sleep(3 * time.Second) // of which an application that has given up takes four
	require.EqualValues(t, 1, hosts.injected.Load())
	hosts.waits.Store(false)
	require.Eventually(t, func() bool { return hosts.injected.Load() > 1 }, patience, time.Millisecond, "the request has gone")
	require.Equal(t, life.Completing, f.state())
	app, leg := legPair(t)
	f.AppAccepted(leg)
	require.Eventually(t, f.Carried, patience, time.Millisecond)
	f.call(func() { f.abort(negotiate.ReasonAppReset, false) })
	require.NoError(t, app.Close())
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
			f.call(func() {}) // after what was posted
			require.Zero(t, c.p.g[0].Panics())
			c.flow[1].call(c.flow[1].replaced)
			c.over(t)
			c.closeApps()
			c.p.empty(t)
		})
	}
}
