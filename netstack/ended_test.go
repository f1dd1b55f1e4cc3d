package netstack

import (
	"bytes"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/stack"

	"github.com/smcgw/smcgw/lab/wire"

	"github.com/smcgw/smcgw/packet"
)

// quiet requires that a stack sends nothing for a while.
func quiet(t *testing.T, s *Stack) {
	t.Helper()
	sent := s.Stats().SegmentsSent
	time.Sleep(300 * time.Millisecond)
	require.Equal(t, sent, s.Stats().SegmentsSent, "segments sent")
}

// A mini socket whose peer was silent sends one reset, however long its owner takes to end it.
func TestSilentMiniIsQuiet(t *testing.T) {
	w := newWorld(t, worldOptions{})
	c, s := w.minis()
	say(t, c, s, 100)
	say(t, s, c, 100)
	w.wire.A().Impair(wire.Impairment{Loss: 1})
	require.NoError(t, c.SetKeepalive(10*time.Millisecond, 10*time.Millisecond, 2))
	readError(t, c, syscall.ETIMEDOUT)
	quiet(t, w.gw)
}

// A mini socket that was reset repeats nothing of what was on the way, also when its owner
// closes it: the tuple may be another connection's by then.
func TestResetMiniIsQuiet(t *testing.T) {
	for _, closes := range []bool{false, true} {
		w := newWorld(t, worldOptions{})
		c, s := w.minis()
		say(t, c, s, 100)
		say(t, s, c, 100)
		time.Sleep(10 * ackTick)
		w.wire.A().Impair(wire.Impairment{Loss: 1})
		_, err := c.Write([]byte("lost"))
		require.NoError(t, err)
		tup := c.Tuple()
		w.fromWire(segmentOf(tup.Remote, tup.Local, c.f.awaited.Load(), 0, packet.FlagRST, nil, nil))
		readError(t, c, syscall.ECONNRESET)
		if closes {
			require.NoError(t, c.Close())
		}
		require.NoError(t, c.SetKeepalive(time.Millisecond, time.Millisecond, 1))
		quiet(t, w.gw)
	}
}

// What leads gVisor is no sign of life of the peer.
func TestGrowIsNoSignOfLife(t *testing.T) {
	w := newWorld(t, worldOptions{})
	c, s := w.minis()
	say(t, c, s, 100)
	say(t, s, c, 100)
	within(t, "all is acknowledged", func() bool { return s.f.una.Load() == s.f.sent.Load() && c.f.una.Load() == c.f.sent.Load() })
	w.wire.A().Impair(wire.Impairment{Loss: 1})
	written, heard := c.Vitals()
	_, err := c.Write([]byte("lost"))
	require.NoError(t, err)
	within(t, "it has an endpoint", func() bool { return c.f.state() == legWhole })
	nowWritten, nowHeard := c.Vitals()
	require.Equal(t, written+4, nowWritten)
	require.Equal(t, heard, nowHeard)
}

// A connection without timestamps has none in any of its segments.
func TestNoTimestampsUnasked(t *testing.T) {
	b := newBench(t, Config{})
	syn := makeSYN(false, 1, 100, packet.RoleOffer)
	synack := without(makeSYNACK(syn, 5000, packet.RoleAccept, testNonce, 101), packet.KindTimestamps)
	c, err := b.s.Adopt(syn, synack, time.Millisecond)
	require.NoError(t, err)
	defer c.Forget()
	from := func(seq, ack uint32, payload string) {
		tup := c.Tuple()
		b.link.Inject(segmentOf(tup.Remote, tup.Local, seq, ack, packet.FlagACK, nil, []byte(payload)))
	}
	require.NoError(t, writeAll(c, "hello"))
	for end := uint32(101); end < 106; {
		_, seg := b.next()
		require.False(t, packet.ParseTCPOptions(seg.Options()).TS)
		end = max(end, c.f.sent.Load())
	}
	from(5001, 106, "world")
	got := make([]byte, 5)
	readFull(t, c, got)
	require.Equal(t, "world", string(got))
	_, seg := b.next()
	for seg.Ack() != 5006 {
		require.False(t, packet.ParseTCPOptions(seg.Options()).TS)
		_, seg = b.next()
	}
	require.False(t, packet.ParseTCPOptions(seg.Options()).TS)
}

// A packet that came in pieces is read where its bytes are joined: the pieces are another packet's
// by then.
func TestMiniReadsJoinedPieces(t *testing.T) {
	w := newWorld(t, worldOptions{})
	c, s := w.minis()
	say(t, s, c, 1000)
	say(t, s, c, 1000)
	w.wire.A().Impair(wire.Impairment{Loss: 1})
	tup := c.Tuple()
	raw := segmentOf(tup.Remote, tup.Local, c.f.awaited.Load()-3000, c.f.sent.Load(), packet.FlagACK, timestamps(), make([]byte, 3000))
	ones := bytes.Repeat([]byte{0xff}, 200) // a header that says all at once
	stop := make(chan struct{})
	var others sync.WaitGroup
	for range 2 {
		others.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				v := buffer.NewViewSize(2 << 10)
				copy(v.AsSlice(), ones)
				v.Release()
			}
		})
	}
	for end := time.Now().Add(time.Second); time.Now().Before(end) && w.gw.Stats().Grown == 0; {
		var b buffer.Buffer
		for rest := raw; len(rest) > 0; {
			v := buffer.NewViewSize(min(len(rest), 2<<10))
			rest = rest[copy(v.AsSlice(), rest):]
			require.NoError(t, b.Append(v))
		}
		p := stack.NewPacketBuffer(stack.PacketBufferOptions{Payload: b})
		spare := []*buffer.View{buffer.NewViewSize(2 << 10), buffer.NewViewSize(2 << 10)}
		for _, v := range spare { // so the pool gives what is released next to any thread
			v.Release()
		}
		w.gw.shim.DeliverNetworkPacket(header.IPv4ProtocolNumber, p)
		p.DecRef()
	}
	close(stop)
	others.Wait()
	require.Zero(t, w.gw.Stats().Grown)
}

// A peer that wants segments of one byte gets larger ones: it would have a packet of each byte sent.
func TestMiniTinySegments(t *testing.T) {
	w := newWorld(t, worldOptions{})
	w.answer = func(syn []byte) {
		go w.fromWire(rebuild(cookieAnswer(syn), func(t packet.TCP) []byte {
			o := t[packet.TCPMinLen:]
			o[2], o[3] = 0, 1 // the MSS
			return o
		}))
	}
	c, s := w.connect(false)
	say(t, s, c, 100) // the window
	sent := w.gw.Stats().SegmentsSent
	say(t, c, s, 1000)
	require.Less(t, w.gw.Stats().SegmentsSent-sent, uint64(100))
}

// An endpoint keeps to the packet size that the path told the mini socket before it.
func TestGrowKeepsPacketSize(t *testing.T) {
	w := newWorld(t, worldOptions{})
	c, s := w.minis()
	say(t, c, s, 1400)
	say(t, s, c, 100)
	tup := c.Tuple()
	w.gwIn.Inject(tooBig(server4, segmentOf(tup.Local, tup.Remote, c.f.una.Load(), 0, packet.FlagACK, nil, nil), 1000))
	within(t, "the size is known", func() bool { return w.gw.Stats().ICMPDelivered == 1 })
	out := w.tap(w.wire.A())
	c.grown(t)
	transfer(t, c, s, 20000)
	for len(out) > 0 {
		require.LessOrEqual(t, len(<-out), 1000)
	}
}
