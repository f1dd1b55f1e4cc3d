package conn

import (
	"io"
	"net"
	"net/netip"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/ebpf"
	"github.com/smcgw/smcgw/gateway/faults"
	"github.com/smcgw/smcgw/gateway/internal/carrier"
	life "github.com/smcgw/smcgw/gateway/internal/flow"
	"github.com/smcgw/smcgw/gateway/internal/host"
	"github.com/smcgw/smcgw/gateway/report"
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

// TestServicePort: that of the server, on either side; no fault is injected unasked.
func TestServicePort(t *testing.T) {
	client := host.Tuple{Local: netip.MustParseAddrPort("10.0.0.1:40000"), Remote: netip.MustParseAddrPort("10.0.0.2:7000")}
	require.EqualValues(t, 7000, ServicePort(client, report.SideClient))
	require.EqualValues(t, 7000, ServicePort(host.Tuple{Local: client.Remote, Remote: client.Local}, report.SideServer))
	require.False(t, (&Flow{env: &Env{}}).step(faults.Offered))
}

// accepted returns the handshakes of the connection's sides when the server has sent
// ACCEPT, and that.
func (c *pairConn) accepted(t *testing.T) (client *negotiate.Client, server *negotiate.Server, accept []byte) {
	client = negotiate.NewClient(negotiate.ClientConfig{}, negotiate.Proposal{Carriers: []negotiate.CarrierOffer{c.offer}})
	server = negotiate.NewServer(negotiate.ServerConfig{}, 0)
	now := time.Now()
	proposal := client.Start(now, 0)[0].(negotiate.Send)
	require.Empty(t, server.Start(now, 0, negotiate.ConfirmedYes))
	require.IsType(t, negotiate.Serve{}, server.Receive(now, proposal.Bytes)[0])
	require.Equal(t, []negotiate.Action{negotiate.Dial{}}, server.Reserved(now, negotiate.Accept{Carriers: []negotiate.CarrierOffer{c.answer}}))
	todo := server.Dialled(now, true, negotiate.ReasonNone)
	require.Len(t, todo, 1)
	return client, server, todo[0].(negotiate.Send).Bytes
}

// early is a connection whose server has not got CONFIRM when the client's first bytes
// are in its ring.
func (p *pair) early(t *testing.T, kind negotiate.CarrierKind, text string) *pairConn {
	a, b := newFakeWires(1<<20, 1<<20)
	c := p.begin(t, a, b)
	c.meet(t, kind)
	c.flow[0].call(func() { c.flow[0].carryBy(kind) })
	f := c.flow[1]
	c.sends(t, text)
	require.Eventually(t, func() (here bool) {
		f.call(func() { here = f.carryOf(kind).EP.ReceivedOffset() == uint64(len(text)) })
		return here
	}, patience, time.Millisecond)
	return c
}

// TestEarlyBytes: what a client has sent is delivered although its wire leg ends before
// CONFIRM has come, as the kernel delivers what came before a reset.
func TestEarlyBytes(t *testing.T) {
	t.Run("native", func(t *testing.T) {
		app, peer := legPair(t)
		_, err := unix.Write(peer, []byte("early bytes"))
		require.NoError(t, err)
		require.NoError(t, unix.Close(peer)) // a reset
		hears(t, app, "early bytes")
		require.NoError(t, app.Close())
	})
	for name, end := range map[string]func(client *fakeWire){
		"reset": (*fakeWire).Abort,
		"fin":   func(w *fakeWire) { _ = w.CloseWrite() },
		"other": func(w *fakeWire) { _, _ = w.Write(make([]byte, 64)) },
	} {
		for _, kind := range rdmaCarriers {
			t.Run(name+"/"+kind.String(), func(t *testing.T) { testEarlyBytes(t, kind, end) })
		}
	}
}

func testEarlyBytes(t *testing.T, kind negotiate.CarrierKind, end func(client *fakeWire)) {
	p := newPair(t)
	c := p.early(t, kind, "early")
	f := c.flow[1]
	_, hs, _ := c.accepted(t)
	c.serves(hs, func() []negotiate.Action { return hs.PeerData(time.Now(), kind) })
	f.call(func() {
		c.places(t, kind, " bytes")
		end(c.wire[0])
		f.hs.looked()
	})
	c.heardOut(t, "early bytes")
	p.empty(t)
}

// TestEarlyBytesUnnoticed: the same where the completion of the first bytes has not been
// looked at when the wire leg has ended.
func TestEarlyBytesUnnoticed(t *testing.T) {
	for name, end := range map[string]func(client *fakeWire){
		"reset": (*fakeWire).Abort,
		"fin":   func(w *fakeWire) { _ = w.CloseWrite() },
	} {
		for _, kind := range rdmaCarriers {
			t.Run(name+"/"+kind.String(), func(t *testing.T) {
				p := newPair(t)
				c := p.early(t, kind, "")
				_, hs, _ := c.accepted(t)
				c.flow[1].call(func() {
					c.places(t, kind, "early bytes")
					end(c.wire[0])
				})
				c.serves(hs, func() []negotiate.Action { return nil })
				c.heardOut(t, "early bytes")
				p.empty(t)
			})
		}
	}
}

// serves begins the handshake of the server with what start returns.
func (c *pairConn) serves(hs *negotiate.Server, start func() []negotiate.Action) {
	f := c.flow[1]
	f.env.Work.Add(1)
	f.call(func() {
		s := f.newServer(hs)
		f.setNegotiator(&s.negotiator)
		s.begin(start())
	})
}

// sends has the client's application send, and waits until its gateway has done so.
func (c *pairConn) sends(t *testing.T, text string) {
	f := c.flow[0]
	want := f.tx.Load() + uint64(len(text))
	_, err := c.app[0].Write([]byte(text))
	require.NoError(t, err)
	require.Eventually(t, func() bool { return f.tx.Load() == want }, patience, time.Millisecond)
	f.call(func() {})
}

// places has the client's application send, and waits until the client's gateway knows that it is in the
// server's memory, as it does before a reset. The caller is on the server's shard, which looks at nothing
// that has arrived meanwhile.
func (c *pairConn) places(t *testing.T, kind negotiate.CarrierKind, text string) {
	c.sends(t, text)
	f := c.flow[0]
	f.call(func() { assert.NoError(t, f.carryOf(kind).EP.Keepalive()) })
	placed := func() (yes bool) {
		f.call(func() { yes = f.carryOf(kind).EP.Placed() })
		return yes
	}
	for deadline := time.Now().Add(patience); !placed(); {
		require.True(t, time.Now().Before(deadline))
		c.flow[1].Shard.Drive(time.Now())
	}
}

// hears checks that an application reads text, and then a reset.
func hears(t *testing.T, app *net.TCPConn, text string) {
	_ = app.SetReadDeadline(time.Now().Add(patience))
	got, err := io.ReadAll(app)
	require.Equal(t, text, string(got))
	require.ErrorIs(t, err, syscall.ECONNRESET)
}

// heardOut checks what the server's application sees of an aborted connection: what was sent
// to it, and a reset, never the end of a stream.
func (c *pairConn) heardOut(t *testing.T, text string) {
	hears(t, c.app[1], text)
	c.flow[0].call(func() { c.flow[0].abort(negotiate.ReasonWireReset, true) })
	require.Equal(t, [2]life.Phase{life.Aborted, life.Aborted}, c.over(t))
	c.closeApps()
}

// TestEarlyLinkFails: a server whose queue pair fails before CONFIRM has come waits for that,
// and asks the peer whether it lives, with an end.
func TestEarlyLinkFails(t *testing.T) {
	p := newPair(t)
	c := p.early(t, negotiate.CarrierSHM, "early bytes")
	f := c.flow[1]
	_, hs, _ := c.accepted(t)
	c.serves(hs, func() []negotiate.Action { return hs.PeerData(time.Now(), negotiate.CarrierSHM) })
	f.call(func() { f.picked.broken() })
	asked := func() bool {
		c.wire[1].link.mu.Lock()
		defer c.wire[1].link.mu.Unlock()
		return c.wire[1].kept && time.Duration(c.wire[1].probes)*life.ResetMissed <= carrier.LegPatience
	}
	require.Eventually(t, asked, patience, time.Millisecond)
	require.Equal(t, life.Carrying, f.state())
	c.wire[0].Abort()
	c.heardOut(t, "early bytes")
	p.empty(t)
}
