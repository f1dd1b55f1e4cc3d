package conn

import (
	"io"
	"net"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/gateway/internal/carrier"
	life "github.com/smcgw/smcgw/gateway/internal/flow"
	"github.com/smcgw/smcgw/negotiate"
)

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
