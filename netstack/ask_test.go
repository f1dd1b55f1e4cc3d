package netstack

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/stack"

	"github.com/smcgw/smcgw/lab/wire"
	"github.com/smcgw/smcgw/packet"
)

// A peer that is asked is heard, whichever side asks and whatever keepalive the
// owner has set, and asking ends with the answer.
func TestAsk(t *testing.T) {
	w := newWorld(t, worldOptions{})
	c, s := w.connect(false)
	for _, conn := range []*Conn{c, s} {
		for range 3 {
			heard := make(chan struct{})
			conn.Ask(func() { close(heard) })
			conn.Ask(nil) // a second caller
			select {
			case <-heard:
			case <-time.After(patience):
				t.Fatal("the peer was not heard")
			}
			require.NoError(t, conn.SetKeepalive(time.Hour, time.Hour, 3))
		}
		within(t, "it goes on asking", func() bool { // what was under way may still come
			_, before := conn.Vitals()
			time.Sleep(2 * askEvery)
			_, after := conn.Vitals()
			return before == after
		})
	}
}

// A peer that does not answer is not heard, and the owner's keepalive is in
// force again when no Ask is under way.
func TestAskInVain(t *testing.T) {
	clock := slowClock(t)
	w := newWorld(t, worldOptions{clock: clock})
	c, _ := w.connect(false)
	w.wire.A().Impair(wire.Impairment{Loss: 1})
	var heard atomic.Int32
	c.Ask(func() { heard.Add(1) })
	tup := c.Tuple()
	w.wire.B().Send(segmentOf(tup.Remote, tup.Local, 1, c.f.sent.Load()+1<<31, packet.FlagACK, timestamps(), nil)) // not the peer's
	within(t, "it has come", func() bool { return c.f.strange.Count() > 0 })
	require.NoError(t, c.SetKeepalive(20*time.Millisecond, 20*time.Millisecond, 3))
	clock.Advance(askFor / 2)
	_, err := c.Read(make([]byte, 1))
	require.ErrorIs(t, err, ErrWouldBlock, "asking ends nothing")
	c.Ask(func() { heard.Add(1) })
	clock.Advance(askFor)
	within(t, "it ends", func() bool {
		clock.Advance(10 * time.Millisecond)
		_, err := c.Read(make([]byte, 1))
		return !errors.Is(err, ErrWouldBlock)
	})
	readError(t, c, syscall.ETIMEDOUT)
	require.Zero(t, heard.Load())
}

// A peer that comes back is heard by the Ask that is still under way.
func TestAskAfterLoss(t *testing.T) {
	clock := slowClock(t)
	w := newWorld(t, worldOptions{clock: clock})
	c, _ := w.connect(false)
	w.wire.A().Impair(wire.Impairment{Loss: 1})
	heard := make(chan struct{})
	c.Ask(func() { close(heard) })
	clock.Advance(askFor / 2)
	w.wire.A().Impair(wire.Impairment{})
	clock.Advance(askEvery)
	select {
	case <-heard:
	case <-time.After(patience):
		t.Fatal("the peer was not heard")
	}
}

// A keepalive that was turned off leaves no count behind that a probe could exceed: an
// Ask tells gVisor of its times one by one, and a probe may be due in between.
func TestAskBehindKeepalive(t *testing.T) {
	w := newWorld(t, worldOptions{})
	c, _ := w.connect(false)
	c.grown(t)
	require.NoError(t, c.SetKeepalive(time.Hour, time.Hour, 3))
	require.NoError(t, c.SetKeepalive(0, 0, 0))
	idle := tcpip.KeepaliveIdleOption(time.Millisecond)
	require.Nil(t, c.whole.ep.SetSockOpt(&idle))
	time.Sleep(50 * time.Millisecond)
	_, err := c.Read(make([]byte, 1))
	require.ErrorIs(t, err, ErrWouldBlock)
}

// What the peer has not acknowledged is told, of a mini socket and of an endpoint; a peer
// that is heard otherwise has not acknowledged it.
func TestAcknowledged(t *testing.T) {
	for _, grown := range []bool{false, true} {
		w := newWorld(t, worldOptions{})
		c, s := w.minis()
		for _, conn := range []*Conn{c, s} {
			if grown {
				conn.grown(t)
			}
			_, err := conn.Write([]byte("before"))
			require.NoError(t, err)
			written, _ := conn.Vitals()
			within(t, "acknowledged", func() bool { return conn.Acknowledged(written) })
			require.False(t, conn.Acknowledged(written+1))
		}
		time.Sleep(5 * ackTick)
		for _, on := range []*wire.End{w.wire.A(), w.wire.B()} {
			on.Impair(wire.Impairment{Loss: 1})
		}
		for _, conn := range []*Conn{c, s} {
			before, _ := conn.Vitals()
			_, err := conn.Write([]byte("lost"))
			require.NoError(t, err)
			written, _ := conn.Vitals()
			require.Equal(t, before+4, written)
			time.Sleep(5 * ackTick)
			require.False(t, conn.Acknowledged(written))
			require.True(t, conn.Acknowledged(before))
		}
		for _, on := range []*wire.End{w.wire.A(), w.wire.B()} {
			on.Impair(wire.Impairment{})
		}
		for _, conn := range []*Conn{c, s} {
			written, _ := conn.Vitals()
			within(t, "sent again", func() bool { return conn.Acknowledged(written) })
		}
	}
}

// tcpHeader is a TCP header that acknowledges ack, with options.
func tcpHeader(flags byte, ack uint32, options ...byte) []byte {
	for len(options)%4 != 0 {
		options = append(options, 1)
	}
	t := make([]byte, packet.TCPMinLen, packet.TCPMinLen+len(options))
	binary.BigEndian.PutUint32(t[8:], ack)
	t[12] = byte(len(t)+len(options)) / 4 << 4
	t[13] = flags
	return append(t, options...)
}

// outboundPacket is a packet with a payload of size bytes.
func outboundPacket(size int) *stack.PacketBuffer {
	return stack.NewPacketBuffer(stack.PacketBufferOptions{Payload: buffer.MakeWithData(make([]byte, size))})
}

// Which acknowledgements wait. That none of the packets is kept longer than its
// flow is what the leak check at the end of the tests sees.
func TestHeldACK(t *testing.T) {
	var a heldACK
	quick := false
	hold := func(size int, header []byte) (held, fresh bool) {
		p := outboundPacket(size)
		defer p.DecRef()
		return a.hold(p, header, quick)
	}
	check := func(wantHeld, wantFresh bool, size int, header []byte) {
		t.Helper()
		held, fresh := hold(size, header)
		require.Equal(t, wantHeld, held, "held")
		require.Equal(t, wantFresh, fresh, "fresh")
	}
	check(true, true, 0, tcpHeader(packet.FlagACK, 100))
	check(true, false, 0, tcpHeader(packet.FlagACK, 200)) // in its place, and on the list already
	check(true, false, 0, tcpHeader(packet.FlagACK, 100+heldBytes))
	check(false, false, 0, tcpHeader(packet.FlagACK, 101+heldBytes)) // too much: leaves, for all
	require.Nil(t, a.pkt)
	a = heldACK{due: true}
	check(false, false, 5, tcpHeader(packet.FlagACK, 200))
	check(true, false, 0, tcpHeader(packet.FlagACK, 300))
	check(false, false, 7, tcpHeader(packet.FlagACK, 300))
	require.Nil(t, a.pkt, "data took it along")
	check(false, false, 0, tcpHeader(packet.FlagACK, 300)) // nothing new: a duplicate says something else
	check(false, false, 0, tcpHeader(packet.FlagACK, 400, packet.KindSACK, 10, 0, 0, 0, 0, 0, 0, 0, 0))
	check(false, false, 0, tcpHeader(packet.FlagACK|packet.FlagFIN, 500))
	check(false, false, 0, tcpHeader(packet.FlagACK|packet.FlagRST, 600))

	check(true, false, 0, tcpHeader(packet.FlagACK, 700))
	p := a.take()
	require.NotNil(t, p)
	p.DecRef()
	check(true, true, 0, tcpHeader(packet.FlagACK, 800))
	require.Nil(t, (&heldACK{}).take())

	quick = true
	check(false, false, 0, tcpHeader(packet.FlagACK, 900))
	require.Nil(t, a.pkt)
	quick = false
	check(true, false, 0, tcpHeader(packet.FlagACK, 1000))
	a.drop()
	require.Nil(t, a.pkt)
	check(false, false, 0, tcpHeader(packet.FlagACK, 1100)) // sent while the flow ended
	require.Nil(t, a.pkt)
}

// A flow keeps no packet beyond its end.
func TestRetiredFlowHoldsNothing(t *testing.T) {
	w := newWorld(t, worldOptions{})
	key := keyOf(Tuple{Local: netip.AddrPortFrom(server4, testPort), Remote: netip.AddrPortFrom(client4, 1000)})
	f := &flow{key: key, server: true, serve: &serving{}}
	require.NoError(t, w.srv.flows.put(f, w.srv.cfg.Limits))
	p := outboundPacket(0)
	g := &grown{}
	f.grow(g)
	held, _ := g.acks.hold(p, tcpHeader(packet.FlagACK, 100), false)
	p.DecRef()
	require.True(t, held)
	require.True(t, f.step(legForget))
	w.srv.retire(f)
	require.Nil(t, g.acks.pkt)
}
