package netstack

import (
	"context"
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"gvisor.dev/gvisor/pkg/tcpip/stack"

	"github.com/smcgw/smcgw/lab/wire"
	"github.com/smcgw/smcgw/netstack/internal/segment"
	"github.com/smcgw/smcgw/netstack/link"
	"github.com/smcgw/smcgw/packet"
)

// hole drops packets of more than its bytes in silence, in both directions.
type hole struct {
	bytes   atomic.Int64
	dropped atomic.Int64
	largest atomic.Int64 // that passed
}

func (h *hole) filter(p []byte) []byte {
	n := int64(len(p))
	if n > h.bytes.Load() {
		h.dropped.Add(1)
		return nil
	}
	if n > h.largest.Load() {
		h.largest.Store(n)
	}
	return p
}

func (w *world) dig(bytes int64) *hole {
	h := &hole{}
	h.bytes.Store(bytes)
	w.wire.A().Impair(wire.Impairment{Filter: h.filter})
	w.wire.B().Impair(wire.Impairment{Filter: h.filter})
	return h
}

// A path that drops large packets and says nothing carries every byte of every
// connection, both ways, whether it was so before or becomes so, at the price of few
// packets lost. TestPathMTUBlackHole of tests/e2e measures the time beside the kernel's.
func TestBlackHole(t *testing.T) {
	for _, c := range []struct {
		name string
		v6   bool
		mtu  int64
	}{{"1400", false, 1400}, {"1000", false, 1000}, {"1400 v6", true, 1400}} {
		for _, before := range []bool{true, false} {
			t.Run(c.name+map[bool]string{true: " before", false: " during"}[before], func(t *testing.T) {
				t.Parallel()
				blackHole(t, c.v6, c.mtu, before)
			})
		}
	}
}

func blackHole(t *testing.T, v6 bool, mtu int64, before bool) {
	w := newWorld(t, worldOptions{})
	h := w.dig(1 << 16)
	if before {
		h.bytes.Store(mtu)
	}
	c, s := w.connect(v6)
	if !before {
		transfer(t, c, s, 100000)
		transfer(t, s, c, 100000)
		h.bytes.Store(mtu)
		h.largest.Store(0)
	}
	start := time.Now()
	done := make(chan struct{})
	go func() {
		defer close(done)
		transfer(t, s, c, 300000)
	}()
	transfer(t, c, s, 300000)
	<-done
	t.Logf("both ways after %v, %d packets lost, the largest has %d bytes", time.Since(start), h.dropped.Load(), h.largest.Load())
	require.NotZero(t, h.dropped.Load(), "there was no hole")
	require.Less(t, h.dropped.Load(), int64(2*300000/1448), "fewer than would be each packet once")
	require.NotZero(t, w.gw.Stats().BlackHoles)
	require.NotZero(t, w.srv.Stats().BlackHoles)
}

// Packets grow back when the path does, and to the largest that passes where it
// does not; no byte is lost by the attempts.
func TestBlackHoleGrowsBack(t *testing.T) {
	w := newWorld(t, worldOptions{})
	h := w.dig(1410)
	c, s := w.connect(false)
	transfer(t, c, s, 100000)
	require.True(t, c.f.grown.Load().fitting.limited.Load())
	within(t, "the largest that passes", func() bool {
		transfer(t, c, s, 100000)
		return h.largest.Load() == 1400
	})
	h.bytes.Store(1500)
	within(t, "whole", func() bool {
		c.f.grown.Load().fitting.mu.Lock()
		c.f.grown.Load().fitting.ahead += time.Hour
		c.f.grown.Load().fitting.mu.Unlock()
		transfer(t, c, s, 100000)
		return !c.f.grown.Load().fitting.limited.Load()
	})
}

// A path of which nothing passes for a while is not narrow: what was made smaller
// is whole again soon.
func TestBlackHoleWasPartition(t *testing.T) {
	w := newWorld(t, worldOptions{})
	h := w.dig(1500)
	c, s := w.connect(false)
	transfer(t, c, s, 100000)
	h.bytes.Store(0)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	_, err := c.WriteContext(ctx, make([]byte, 50000))
	require.NoError(t, err)
	within(t, "taken for a hole", c.f.grown.Load().fitting.limited.Load)
	h.bytes.Store(1500)
	buf := make([]byte, 50000)
	for left := len(buf); left > 0; {
		n, err := s.ReadContext(ctx, buf)
		require.NoError(t, err)
		left -= n
	}
	within(t, "whole", func() bool {
		transfer(t, c, s, 100000)
		return !c.f.grown.Load().fitting.limited.Load()
	})
}

// What is cut is the same bytes under the same sequence numbers, each piece with
// right checksums.
func TestCutPacket(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for _, v6 := range []bool{false, true} {
		for range 200 {
			n := 1 + rng.IntN(5000)
			payload := make([]byte, n)
			for i := range payload {
				payload[i] = byte(rng.Uint32())
			}
			whole := segmentWith(v6, payload)
			ip, tcp := whole.NetworkHeader().Slice(), packet.TCP(whole.TransportHeader().Slice())
			headers := len(ip) + len(tcp)
			c := segment.Cut{First: headers + 1 + rng.IntN(2000), Rest: headers + 1 + rng.IntN(2000)}
			pieces, keep := cutPacket(whole, ip, tcp, c)
			require.Equal(t, headers+n <= c.First, keep)
			if !keep {
				checkPieces(t, pieces, tcp.Seq(), payload, c)
			}
			whole.DecRef()
		}
	}
}

func segmentWith(v6 bool, payload []byte) *stack.PacketBuffer {
	ip := []byte{0x45, 0, 0, 0, 0, 7, 0x40, 0, 64, packet.ProtoTCP, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2}
	if v6 {
		ip = append([]byte{0x60, 0, 0, 0, 0, 0, packet.ProtoTCP, 64}, make([]byte, 32)...)
	}
	t := tcpHeader(packet.FlagACK|packet.FlagPSH|packet.FlagFIN, 77, packet.KindTimestamps, 10, 1, 2, 3, 4, 5, 6, 7, 8)
	t[4], t[7] = 0xff, 0xff
	return buildTCP(ip, t, t[packet.TCPMinLen:], payload)
}

func checkPieces(t *testing.T, pieces []*stack.PacketBuffer, seq uint32, payload []byte, c segment.Cut) {
	t.Helper()
	var got []byte
	for i, q := range pieces {
		raw := link.Flatten(q)
		q.DecRef()
		limit := c.Rest
		if i == 0 {
			limit = c.First
		}
		require.LessOrEqual(t, len(raw), limit)
		p, tcp, ok := parseTCP(raw)
		require.True(t, ok)
		require.True(t, p.HeaderSumOK())
		b := link.Buffer(raw)
		require.True(t, sumOK(p, b))
		b.DecRef()
		require.Equal(t, seq+uint32(len(got)), tcp.Seq())
		require.Equal(t, i == len(pieces)-1, tcp.Flags()&packet.FlagFIN != 0)
		got = append(got, p.Payload[len(tcp):]...)
	}
	require.Equal(t, payload, got)
}

// The kernel cuts what is offloaded: it is told a smaller segment.
func TestCutOffloaded(t *testing.T) {
	p := segmentWith(false, make([]byte, 9000))
	defer p.DecRef()
	p.GSOOptions = stack.GSO{Type: stack.GSOTCPv4, NeedsCsum: true, MSS: 1448}
	ip, tcp := p.NetworkHeader().Slice(), packet.TCP(p.TransportHeader().Slice())
	pieces, keep := cutPacket(p, ip, tcp, segment.Cut{First: 1076, Rest: 1076})
	require.True(t, keep)
	require.Empty(t, pieces)
	require.EqualValues(t, 1076-len(ip)-len(tcp), p.GSOOptions.MSS)
	pieces, keep = cutPacket(p, ip, tcp, segment.Cut{First: 1500, Rest: 1076})
	require.False(t, keep, "one is larger")
	checkPieces(t, pieces, tcp.Seq(), make([]byte, 9000), segment.Cut{First: 1500, Rest: 1076})
}

// icmpMessage is an ICMP error that quotes a segment of src.
func icmpMessage(src, dst netip.AddrPort, kind, code byte, mtu uint32) []byte {
	quote := packet.Segment{Src: src, Dst: dst, Seq: 7, Flags: packet.FlagACK}.Append(nil)
	h := packet.Header{Src: dst.Addr(), Dst: src.Addr(), Proto: packet.ProtoICMP, TTL: 64}
	if src.Addr().Is6() {
		h.Proto = packet.ProtoICMPv6
	}
	b := make([]byte, h.Len()+icmpHeaderLen)
	h.Put(b, icmpHeaderLen+len(quote))
	b[h.Len()], b[h.Len()+1] = kind, code
	binary.BigEndian.PutUint32(b[h.Len()+4:], mtu)
	return append(b, quote...)
}

var (
	a4, b4 = netip.MustParseAddrPort("10.0.0.1:1"), netip.MustParseAddrPort("10.0.0.2:2")
	a6, b6 = netip.MustParseAddrPort("[fd00::1]:1"), netip.MustParseAddrPort("[fd00::2]:2")
)

func TestReadICMP(t *testing.T) {
	for _, c := range []struct {
		src, dst   netip.AddrPort
		kind, code byte
		said, mtu  uint32
		ok         bool
	}{
		{a4, b4, icmpUnreachable, icmpFragNeeded, 1300, 1300, true},
		{a4, b4, icmpUnreachable, icmpFragNeeded, 551, 0, false},
		{a4, b4, icmpUnreachable, 1, 1300, 0, true},
		{a4, b4, 8, 0, 1300, 0, false},
		{a6, b6, icmpV6TooBig, 0, 1300, 1300, true},
		{a6, b6, icmpV6TooBig, 0, 1279, 0, false},
		{a6, b6, icmpV6TooBig, 0, 1 << 31, 1 << 16, true},
		{a6, b6, icmpV6Unreachable, 0, 0, 0, true},
		{a6, b6, 128, 0, 0, 0, false},
	} {
		b := icmpMessage(c.src, c.dst, c.kind, c.code, c.said)
		p, err := packet.ParseIP(b)
		require.NoError(t, err)
		e, ok := readICMP(p, b)
		require.Equal(t, c.ok, ok, "%+v", c)
		if ok {
			require.EqualValues(t, c.mtu, e.mtu)
			require.EqualValues(t, 7, e.segment.Seq())
			require.Equal(t, c.src.Addr(), e.quoted.Src())
		}
		for n := range len(p.Header) + icmpHeaderLen + packet.IPv4MinLen {
			_, ok := readICMP(p, b[:n])
			require.False(t, ok, "%d bytes", n)
		}
	}
}

func FuzzICMP(f *testing.F) {
	f.Add(icmpMessage(a4, b4, icmpUnreachable, icmpFragNeeded, 1300))
	f.Add(icmpMessage(a6, b6, icmpV6TooBig, 0, 1300))
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := packet.ParseIP(b)
		if err != nil {
			return
		}
		if e, ok := readICMP(p, b); ok {
			require.NotNil(t, e.segment)
			_ = e.segment.Seq()
		}
	})
}
