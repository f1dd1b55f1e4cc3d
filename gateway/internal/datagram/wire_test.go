package datagram

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	ippacket "github.com/smcgw/smcgw/packet"
)

var (
	ends4 = endPair{src: netip.MustParseAddrPort("10.0.0.1:4000"), dst: netip.MustParseAddrPort("10.0.0.2:53")}
	ends6 = endPair{src: netip.MustParseAddrPort("[fd00::1]:4000"), dst: netip.MustParseAddrPort("[fd00::2]:53")}
)

// TestWireVectors: byte for byte as docs/PROTOCOL.md has it.
func TestWireVectors(t *testing.T) {
	require.Equal(t, []byte{
		4, 8, 0x0f, 0xa0, 10, 0, 0, 1,
		4, 8, 0, 53, 10, 0, 0, 2, 'h', 'i',
	}, append(ends4.append(nil), "hi"...))
	b := ends6.append(nil)
	require.Len(t, b, 48)
	require.Equal(t, []byte{6, 24, 0x0f, 0xa0, 0, 0, 0, 0, 0xfd}, b[:9])
	require.Equal(t, []byte{6, 24, 0, 53, 0, 0, 0, 0, 0xfd}, b[24:33])

	require.EqualValues(t, 0x1234_0005, pieceImm(0x1234, 5, false))
	require.EqualValues(t, 0x3fff_8007, pieceImm(0xffff, 7, true), "14 bits of id")
	require.EqualValues(t, 0x4000_0003, controlImm(controlNative))

	n := nativeNotice{service: ends4.dst, reason: 2, seconds: 600}
	b = n.append(nil)
	require.Equal(t, []byte{4, 8, 0, 53, 10, 0, 0, 2, 2, 2, 88}, b)
	got, err := parseNativeNotice(b)
	require.NoError(t, err)
	require.Equal(t, n, got)
	all := nativeNotice{service: netip.AddrPortFrom(ends6.dst.Addr(), 0)}
	got, err = parseNativeNotice(all.append(nil))
	require.NoError(t, err)
	require.Equal(t, all, got)
	_, err = parseNativeNotice(nativeNotice{service: ends4.dst, seconds: 1}.append(nil))
	require.ErrorIs(t, err, errMalformed, "a service without a reason")
}

// TestWireTruncated: nothing shorter is taken, and nothing panics.
func TestWireTruncated(t *testing.T) {
	for _, e := range []endPair{ends4, ends6} {
		b := e.append(nil)
		for n := range b {
			_, _, err := parseMessage(b[:n])
			require.Error(t, err, n)
		}
		got, payload, err := parseMessage(b)
		require.NoError(t, err)
		require.Equal(t, e, got)
		require.Empty(t, payload)
		notice := nativeNotice{service: e.dst, reason: 1, seconds: 1}.append(nil)
		for n := range notice {
			_, err := parseNativeNotice(notice[:n])
			require.Error(t, err, n)
		}
		_, err = parseNativeNotice(append(notice, 0))
		require.Error(t, err)
	}
}

func TestWireRefuses(t *testing.T) {
	addr := netip.MustParseAddrPort
	for name, e := range map[string]endPair{
		"families":    {src: ends4.src, dst: ends6.dst},
		"mapped":      {src: addr("[::ffff:10.0.0.1]:1"), dst: ends6.dst},
		"multicast":   {src: ends4.src, dst: addr("224.0.0.1:1")},
		"unspecified": {src: addr("0.0.0.0:1"), dst: ends4.dst},
		"port 0":      {src: ends4.src, dst: addr("10.0.0.2:0")},
	} {
		_, _, err := parseMessage(e.append(nil))
		require.Error(t, err, name)
	}
	for _, imm := range []uint32{1 << 31, 3 << 30, 1 << 30, 1<<30 | 1<<8 | 1, maxPieces} {
		_, err := parseImmediate(imm)
		require.ErrorIs(t, err, errMalformed, "%#x", imm)
	}
	imm, err := parseImmediate(pieceImm(9, maxPieces-1, true))
	require.NoError(t, err)
	require.Equal(t, immediate{id: 9, index: maxPieces - 1, last: true}, imm)
}

func FuzzWire(f *testing.F) {
	f.Add(append(ends4.append(nil), "payload"...), uint32(0))
	f.Add(ends6.append(nil), pieceImm(1, 1, true))
	f.Add(nativeNotice{service: ends4.dst, reason: 1, seconds: 1}.append(nil), controlImm(controlNative))
	f.Fuzz(func(t *testing.T, b []byte, imm uint32) {
		if e, payload, err := parseMessage(b); err == nil {
			again, rest, err := parseMessage(append(e.append(nil), payload...))
			require.NoError(t, err)
			require.Equal(t, e, again)
			require.True(t, bytes.Equal(payload, rest))
		}
		if n, err := parseNativeNotice(b); err == nil {
			again, err := parseNativeNotice(n.append(nil))
			require.NoError(t, err)
			require.Equal(t, n, again)
		}
		if p, err := parseImmediate(imm); err == nil && p.control == 0 {
			require.Equal(t, imm, pieceImm(p.id, p.index, p.last))
		}
	})
}

// piecesFor cuts a datagram as a port does.
func piecesFor(id uint16, e endPair, payload []byte, mtu int) (list []testPiece) {
	head := e.append(nil)
	room := mtu - len(head)
	count := max(1, (len(payload)+room-1)/room)
	for i := range count {
		part := payload[i*room : min(len(payload), (i+1)*room)]
		list = append(list, testPiece{
			imm: pieceImm(id, i, i == count-1), msg: append(append([]byte(nil), head...), part...),
		})
	}
	return list
}

// sentPiece is a piece and when it arrives.
type sentPiece struct {
	testPiece
	at time.Time
}

type testPiece struct {
	imm uint32
	msg []byte
}

func (r *reassembly) take(t require.TestingT, now time.Time, p testPiece) ([]byte, error) {
	imm, err := parseImmediate(p.imm)
	require.NoError(t, err)
	ends, _, err := parseMessage(p.msg)
	require.NoError(t, err)
	b, n, err := r.add(now, imm, ends, p.msg)
	if b == nil {
		return nil, err
	}
	return append([]byte{}, b[headroom:headroom+n]...), err
}

// TestReassembleInAnyOrder: the last piece first, too.
func TestReassembleInAnyOrder(t *testing.T) {
	payload := randomBytes(5000)
	for _, e := range []endPair{ends4, ends6} {
		for _, mtu := range []int{256, 1024, 4096} {
			pieces := piecesFor(1, e, payload, mtu)
			for first := range pieces {
				r := reassembly{pool: &asmPool{}}
				var got []byte
				for i := range pieces {
					p := pieces[(first+len(pieces)-i)%len(pieces)] // backwards from first
					b, err := r.take(t, time.Unix(1, 0), p)
					require.NoError(t, err)
					if b != nil {
						got = b
					}
				}
				require.True(t, bytes.Equal(payload, got), "mtu %d, first %d", mtu, first)
				require.Empty(t, r.parts)
				require.Zero(t, r.pool.taken)
			}
		}
	}
}

// TestReassembleLongest: the longest payload at the smallest MTU.
func TestReassembleLongest(t *testing.T) {
	payload := randomBytes(maxPayload)
	r := reassembly{pool: &asmPool{}}
	pieces := piecesFor(7, ends6, payload, minMTU)
	require.Len(t, pieces, maxPieces)
	for i, p := range pieces {
		b, err := r.take(t, time.Unix(1, 0), p)
		require.NoError(t, err)
		require.Equal(t, i == len(pieces)-1, b != nil)
		if b != nil {
			require.True(t, bytes.Equal(payload, b))
		}
	}
	for _, p := range piecesFor(8, ends4, payload, minMTU) { // more than IPv4 can carry
		if _, err := r.take(t, time.Unix(1, 0), p); err != nil {
			require.ErrorIs(t, err, errMalformed)
			return
		}
	}
	require.Fail(t, "taken")
}

// TestReassembleRefuses: pieces that are of no datagram cost the datagram.
func TestReassembleRefuses(t *testing.T) {
	now := time.Unix(1, 0)
	long := piecesFor(1, ends4, randomBytes(5000), 1024)
	for name, bad := range map[string]testPiece{
		"headers":       {imm: pieceImm(1, 2, false), msg: append(ends4.append(nil), make([]byte, 1007)...)},
		"length":        {imm: pieceImm(1, 2, false), msg: append(ends4.append(nil), make([]byte, 9)...)},
		"empty":         {imm: pieceImm(1, 2, false), msg: ends4.append(nil)},
		"last too long": {imm: pieceImm(1, 4, true), msg: append(ends4.append(nil), make([]byte, 2000)...)},
		"last too soon": {imm: pieceImm(1, 1, true), msg: append(ends4.append(nil), 1)},
	} {
		r := reassembly{pool: &asmPool{}}
		for _, i := range []int{0, 3} {
			_, err := r.take(t, now, long[i])
			require.NoError(t, err)
		}
		if name == "headers" {
			bad.msg[3]++
		}
		_, err := r.take(t, now, bad)
		require.ErrorIs(t, err, errMalformed, name)
		if name != "empty" { // that one says nothing about its datagram
			require.Empty(t, r.parts, name)
		}
	}
}

// TestReassemblyIsBounded: per peer, in all, and in time.
func TestReassemblyIsBounded(t *testing.T) {
	pool := &asmPool{}
	now := time.Unix(1, 0)
	peers := make([]reassembly, 2*asmTotal/asmPerPeer)
	for i := range peers {
		peers[i].pool = pool
		for id := range uint16(2 * asmPerPeer) {
			b, err := peers[i].take(t, now, piecesFor(id, ends4, make([]byte, 5000), 1024)[0])
			require.NoError(t, err)
			require.Nil(t, b)
			require.LessOrEqual(t, len(peers[i].parts), asmPerPeer)
		}
	}
	require.Equal(t, asmTotal, pool.taken)
	// A sender that fills all of it keeps no other from anything.
	late := reassembly{pool: pool}
	whole := 0
	for _, m := range piecesFor(7, ends4, make([]byte, 5000), 1024) {
		b, err := late.take(t, now, m)
		require.NoError(t, err)
		if b != nil {
			whole++
		}
	}
	require.Equal(t, 1, whole)
	dropped := uint64(0)
	for i := range peers {
		peers[i].expire(now.Add(asmPatience))
		peers[i].expire(now.Add(asmPatience + 1))
		require.Empty(t, peers[i].parts)
		dropped += peers[i].dropped
	}
	require.Zero(t, pool.taken)
	require.EqualValues(t, len(peers)*2*asmPerPeer, dropped, "each is counted")
	require.Len(t, pool.free, asmTotal)
}

// TestReassemblyModel: whatever the network does, what comes out is a datagram
// that was sent, at most as often as its pieces came, and all of it when nothing
// was lost, late or twice.
func TestReassemblyModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := reassembly{pool: &asmPool{}}
		now := time.Unix(1, 0)
		ids := pieceIDs{next: rapid.Uint16().Draw(t, "id")}
		count := rapid.IntRange(1, 30).Draw(t, "datagrams")
		loss := rapid.IntRange(0, 3).Draw(t, "loss")
		var queue []sentPiece
		sent := map[string]bool{}
		for range count {
			payload := randomBytes(rapid.IntRange(0, 1200).Draw(t, "size"))
			sent[string(payload)] = true
			// Between the datagrams of this test there are others, all lost.
			for range rapid.SampledFrom([]int{0, 0, 0, 1, 300, 9000, 16383}).Draw(t, "others") {
				for _, ok := ids.take(now); !ok; _, ok = ids.take(now) {
					now = now.Add(time.Millisecond)
				}
			}
			id, ok := ids.take(now)
			for ; !ok; id, ok = ids.take(now) {
				now = now.Add(time.Millisecond)
			}
			for _, piece := range piecesFor(id, ends4, payload, 256) {
				p := sentPiece{testPiece: piece, at: now}
				if loss > 0 && rapid.IntRange(0, 9).Draw(t, "lost") < loss {
					continue
				}
				queue = append(queue, p)
				if loss > 0 && rapid.IntRange(0, 9).Draw(t, "twice") == 0 {
					queue = append(queue, p)
				}
			}
		}
		if loss > 0 { // up to 40 ms late
			for i := range queue {
				queue[i].at = queue[i].at.Add(time.Duration(rapid.IntRange(0, 40).Draw(t, "late")) * time.Millisecond)
			}
			slices.SortStableFunc(queue, func(a, b sentPiece) int { return a.at.Compare(b.at) })
		}
		out := 0
		for _, p := range queue {
			b, err := r.take(t, p.at, p.testPiece)
			if loss == 0 {
				require.NoError(t, err)
			}
			if b != nil {
				require.True(t, sent[string(b)], "%d bytes that nobody sent", len(b))
				out++
			}
			require.LessOrEqual(t, len(r.parts), asmPerPeer)
		}
		if loss == 0 {
			require.Equal(t, count, out)
			require.Zero(t, r.dropped)
		}
		r.clear()
		require.Zero(t, r.pool.taken)
	})
}

func FuzzReassembly(f *testing.F) {
	f.Add([]byte{1, 0, 3, 1, 1, 3, 1, 130, 2})
	f.Fuzz(func(t *testing.T, script []byte) {
		r := reassembly{pool: &asmPool{}}
		now := time.Unix(1, 0)
		for ; len(script) >= 3; script = script[3:] {
			imm := immediate{id: uint16(script[0]) << 4, index: int(script[1]&0x7f) * 2, last: script[1] > 0x7f}
			now = now.Add(time.Duration(script[0]) * time.Millisecond)
			msg := append(ends4.append(nil), make([]byte, int(script[2])*16)...)
			if b, n, _ := r.add(now, imm, ends4, msg); b != nil {
				require.True(t, ends4.fits(n))
				require.LessOrEqual(t, headroom+n, len(b))
			}
			require.LessOrEqual(t, len(r.parts), asmPerPeer)
		}
	})
}

// steered is a packet as A gives it.
func steered(e endPair, payload []byte) []byte {
	b := make([]byte, headroom+len(payload))
	copy(b[headroom:], payload)
	return b[putUDP(b, headroom, len(payload), e):]
}

func TestUDPPacketsThereAndBack(t *testing.T) {
	for _, e := range []endPair{ends4, ends6} {
		for _, n := range []int{0, 1, 2, 1472, 8972, 65507} {
			payload := randomBytes(n)
			b := steered(e, payload)
			p, err := parseUDP(b)
			require.NoError(t, err)
			require.Equal(t, e, p.endPair)
			require.True(t, bytes.Equal(payload, p.payload))
			require.Equal(t, len(b)-n, e.payloadAt())
			checkSum(t, b)
			padded, err := parseUDP(append(b, 0, 0)) // a short Ethernet frame was padded
			require.NoError(t, err)
			require.Equal(t, p, padded)
		}
	}
}

func TestUDPPacketTruncated(t *testing.T) {
	for _, e := range []endPair{ends4, ends6} {
		b := steered(e, []byte("payload"))
		for n := range b {
			_, err := parseUDP(b[:n])
			require.ErrorIs(t, err, errNotCarried, n)
		}
	}
}

// TestPacketsThatAreNotCarried: those that would not arrive as they are.
func TestPacketsThatAreNotCarried(t *testing.T) {
	spoil := func(e endPair, fn func(ip []byte)) []byte {
		b := steered(e, []byte("payload"))
		fn(b[vnetLen:])
		return b
	}
	for name, b := range map[string][]byte{
		"super-packet": append([]byte{0, 5}, steered(ends4, []byte("payload"))[2:]...),
		"version":      spoil(ends4, func(ip []byte) { ip[0] = 0x55 }),
		"options":      spoil(ends4, func(ip []byte) { ip[0] = 0x46 }),
		"first piece":  spoil(ends4, func(ip []byte) { ip[6] = 0x20 }),
		"later piece":  spoil(ends4, func(ip []byte) { ip[7] = 1 }),
		"tcp":          spoil(ends4, func(ip []byte) { ip[9] = 6 }),
		"traceroute":   spoil(ends4, func(ip []byte) { ip[8] = 1 }),
		"udp length":   spoil(ends4, func(ip []byte) { ip[ippacket.IPv4MinLen+5]++ }),
		"udp short":    spoil(ends4, func(ip []byte) { ip[ippacket.IPv4MinLen+5] = 7 }),
		"ip length":    spoil(ends4, func(ip []byte) { ip[3] = 19 }),
		"ip too long":  spoil(ends4, func(ip []byte) { ip[2] = 1 }),
		"next header":  spoil(ends6, func(ip []byte) { ip[6] = 44 }),
		"hop limit":    spoil(ends6, func(ip []byte) { ip[7] = 3 }),
		"ip6 length":   spoil(ends6, func(ip []byte) { binary.BigEndian.PutUint16(ip[4:], 7) }),
		"ip6 too long": spoil(ends6, func(ip []byte) { ip[4] = 1 }),
		"mapped":       spoil(ends6, func(ip []byte) { copy(ip[8:], append(make([]byte, 10), 0xff, 0xff, 1, 2, 3, 4)) }),
	} {
		_, err := parseUDP(b)
		require.ErrorIs(t, err, errNotCarried, name)
	}
}

func FuzzUDPPacket(f *testing.F) {
	f.Add(steered(ends4, []byte("payload")))
	f.Add(steered(ends6, nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := parseUDP(b)
		if err != nil {
			return
		}
		require.True(t, p.fits(len(p.payload)))
		again, err := parseUDP(steered(p.endPair, p.payload))
		require.NoError(t, err)
		require.Equal(t, p.endPair, again.endPair)
		require.True(t, bytes.Equal(p.payload, again.payload))
	})
}

// TestPacketsDoNotAllocate: neither way.
func TestPacketsDoNotAllocate(t *testing.T) {
	buf := make([]byte, 4096)
	for _, e := range []endPair{ends4, ends6} {
		require.Zero(t, testing.AllocsPerRun(100, func() {
			start := putUDP(buf, headroom, 100, e)
			p, err := parseUDP(buf[start : headroom+100])
			if err != nil || len(p.payload) != 100 {
				panic("packet")
			}
			msg := p.append(buf[:0])
			if _, _, err := parseMessage(msg); err != nil {
				panic("headers")
			}
		}))
	}
}
