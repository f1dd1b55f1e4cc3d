package netstack

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/lab/wire"
	"github.com/smcgw/smcgw/packet"
)

// provedRTT is what the recorder says of the round trip of a proved handshake.
const provedRTT = 30 * time.Millisecond

// cookieISS is the sequence number of the SYN-ACKs of tests.
const cookieISS = 0xfffffff0

// cookieStamp is the timestamp of a SYN-ACK with which the client of a SYN is
// answered (docs/PROTOCOL.md "Cookies").
func cookieStamp(o packet.TCPOptions) uint32 {
	return stampCookie(o.MSS, int(o.WS), o.SACK, o.Option.Nonce, 0x5a)
}

// cookieAnswer is the SYN-ACK for an offered SYN.
func cookieAnswer(syn []byte) []byte {
	p, t, ok := parseTCP(syn)
	if !ok {
		panic("no syn")
	}
	o := packet.ParseTCPOptions(t.Options())
	opts := []byte{packet.KindMSS, 4, 5, 180, packet.KindNOP, packet.KindNOP, packet.KindTimestamps, 10}
	opts = binary.BigEndian.AppendUint32(opts, cookieStamp(o))
	opts = binary.BigEndian.AppendUint32(opts, o.TSVal)
	if o.SACK {
		opts = append(opts, packet.KindNOP, packet.KindNOP, packet.KindSACKPermitted, 2)
	}
	if o.WS >= 0 {
		opts = append(opts, packet.KindNOP, packet.KindWindowScale, 3, cookieScale)
	}
	opts = appendOption(opts, packet.RoleAccept, o.Option.Nonce)
	k := inboundKey(p.Header, t)
	tuple := k.tuple()
	return segmentOf(tuple.Local, tuple.Remote, cookieISS, t.Seq()+1, packet.FlagSYN|packet.FlagACK, opts, nil)
}

// surely has the SYNs of a world answered whatever its wire loses.
func (w *world) surely() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.answer = func(syn []byte) { go w.fromWire(cookieAnswer(syn)) }
}

// Connections whose SYN was answered outside of the stack carry as others do, in a bad
// network too, whatever the client's SYN asked for.
func TestProvedTransfers(t *testing.T) {
	for i, edit := range []func([]byte) []byte{
		nil,
		func(b []byte) []byte { return without(b, packet.KindSACKPermitted) },
		func(b []byte) []byte { return without(b, packet.KindWindowScale) },
		func(b []byte) []byte {
			return without(b, packet.KindWindowScale, packet.KindSACKPermitted, packet.KindMSS)
		},
	} {
		for _, v6 := range []bool{false, true} {
			t.Run(fmt.Sprintf("%d %v", i, v6), func(t *testing.T) {
				w := newWorld(t, worldOptions{seed: uint64(i), editSYN: edit})
				w.surely()
				bad := wire.Impairment{Loss: 0.02, Dup: 0.02, Reorder: 0.05, Delay: time.Millisecond}
				w.wire.A().Impair(bad)
				w.wire.B().Impair(bad)
				c, s := w.connect(v6)
				require.EqualValues(t, cookieISS, s.ServerISN())
				require.Equal(t, c.ServerISN(), s.ServerISN())
				require.Equal(t, c.ISN(), s.ISN())
				require.Equal(t, serverAddr(v6), c.RemoteAddr())
				require.Equal(t, c.LocalAddr(), s.RemoteAddr())
				require.EqualValues(t, testNonce, s.f.nonce)
				require.Equal(t, provedRTT, s.SYNRTT())
				require.Zero(t, w.server.proofs()-1)
				transfer(t, c, s, 300_000)
				transfer(t, s, c, 300_000)
				require.Equal(t, ConfirmYes, s.Confirmed())
				require.Zero(t, w.srv.Stats().ChecksumErrors+w.gw.Stats().ChecksumErrors)
				require.Zero(t, w.srv.Stats().Strangers+w.gw.Stats().Strangers)
				w.wire.A().Impair(wire.Impairment{}) // a reset is not sent again
				w.wire.B().Impair(wire.Impairment{})
				s.Abort()
				within(t, "reset", func() bool { _, err := c.Read(make([]byte, 1)); return errors.Is(err, syscall.ECONNRESET) })
			})
		}
	}
}

// The timestamp of a SYN-ACK, as the programs make it (ebpf TestAnswer).
func TestCookieStamp(t *testing.T) {
	for stamp, o := range map[uint32]packet.TCPOptions{
		0x1234_5a7d: {MSS: 1460, WS: 7, SACK: true, Option: packet.Option{Nonce: 0x1234}},
		0x1234_5a75: {MSS: 1460, WS: 7, Option: packet.Option{Nonce: 0x1234}},
		0x1234_5afd: {MSS: 1460, WS: -1, SACK: true, Option: packet.Option{Nonce: 0x1234}},
		0x1234_5af0: {MSS: 536, WS: -1, Option: packet.Option{Nonce: 0x1234}},
		0x1234_5aef: {MSS: 8960, WS: 14, SACK: true, Option: packet.Option{Nonce: 0x1234}},
	} {
		require.Equal(t, stamp, cookieStamp(o))
		opts := binary.BigEndian.AppendUint32([]byte{packet.KindNOP, packet.KindNOP, packet.KindTimestamps, 10, 0, 0, 0, 9}, stamp)
		_, seg, ok := parseTCP(segmentOf(clientAddr(1), serverAddr(false), 101, cookieISS+1, packet.FlagACK, opts, nil))
		require.True(t, ok)
		p, ok := readCookie(seg)
		require.True(t, ok)
		o.TS, o.TSVal, o.Option.Version, o.Option.Role = true, 9, packet.OptionVersion, packet.RoleOffer
		require.Equal(t, o, p.Ask)
		require.EqualValues(t, uint32(cookieISS), p.ISS)
	}
}

// prove sends the first segment of a connection whose SYN-ACK has cookieISS.
func (b *bench) prove(port uint16, isn uint32, role packet.Role, payload string) {
	b.isn[clientAddr(port)] = isn
	b.proveAt(port, isn+1, role, payload)
}

func (b *bench) proveAt(port uint16, seq uint32, role packet.Role, payload string) {
	opts := provingStamps()
	if role != 0 {
		opts = appendOption(opts, role, testNonce)
	}
	b.proveWith(port, seq, opts, payload)
}

func (b *bench) proveWith(port uint16, seq uint32, opts []byte, payload string) {
	b.link.Inject(segmentOf(clientAddr(port), serverAddr(false), seq, cookieISS+1, packet.FlagACK, opts, []byte(payload)))
}

// provingStamps are the timestamps of a client whose SYN was answered with a cookie.
func provingStamps() []byte {
	opts := []byte{packet.KindNOP, packet.KindNOP, packet.KindTimestamps, 10, 0, 0, 0, 9}
	return binary.BigEndian.AppendUint32(opts, cookieStamp(packet.TCPOptions{MSS: 1460, WS: 7, SACK: true, Option: packet.Option{Nonce: testNonce}}))
}

// provedConn waits for the connection of a proved handshake.
func (b *bench) provedConn() *Conn {
	b.t.Helper()
	select {
	case c := <-b.h.accepted:
		b.t.Cleanup(c.Forget)
		return c
	case <-time.After(patience):
		require.FailNow(b.t, "not accepted", "%v", b.h.failures())
		return nil
	}
}

// The stack sends no SYN-ACK; what came at once is not lost, and what it sends itself is
// in the numbers of the SYN-ACK that was sent for it.
func TestProved(t *testing.T) {
	for _, role := range []packet.Role{0, packet.RoleConfirm} {
		b := newBench(t, Config{})
		b.prove(1, 100, role, "hello")
		b.proveAt(1, 106, 0, " world")
		c := b.provedConn()
		want := ConfirmYes
		if role == 0 {
			want = ConfirmNo
		}
		got := make([]byte, 0, 11)
		within(t, "read", func() bool {
			buf := make([]byte, 16)
			n, _ := c.Read(buf)
			got = append(got, buf[:n]...)
			return len(got) == 11
		})
		require.Equal(t, "hello world", string(got))
		require.Equal(t, want, c.Confirmed())
		_, err := c.Write([]byte("x"))
		require.NoError(t, err)
		for {
			p, seg := b.next()
			require.Zero(t, seg.Flags()&packet.FlagSYN)
			if p.Total == len(p.Header)+len(seg) {
				continue // an acknowledgement
			}
			require.EqualValues(t, uint32(cookieISS+1), seg.Seq())
			require.EqualValues(t, 112, seg.Ack())
			stamp := packet.ParseTCPOptions(seg.Options()).TSVal - cookieStamp(packet.TCPOptions{MSS: 1460, WS: 7, SACK: true, Option: packet.Option{Nonce: testNonce}})
			require.Less(t, stamp, uint32(patience.Milliseconds()))
			break
		}
	}
}

// A proof that is not wanted, or has no timestamps, leaves nothing.
func TestProvedRefused(t *testing.T) {
	b := newBench(t, Config{})
	b.h.refuse = true
	b.prove(1, 100, packet.RoleConfirm, "")
	require.Equal(t, 1, b.h.proofs())
	b.link.Inject(segmentOf(clientAddr(2), serverAddr(false), 101, cookieISS+1, packet.FlagACK, nil, nil))
	b.silent()
	require.Zero(t, b.s.Stats().Flows)
	require.EqualValues(t, 2, b.s.Stats().Unknown)
}

// A SYN whose sender knows nothing of the connection ends it at no time; that of its
// client, without an offer, is told.
func TestProvedBlindSYN(t *testing.T) {
	b := newBench(t, Config{})
	b.prove(1, 100, packet.RoleConfirm, "")
	b.link.Inject(makeSYN(false, 1, 7777, packet.RoleOffer))
	c := b.provedConn()
	for _, role := range []packet.Role{0, packet.RoleOffer} {
		b.link.Inject(makeSYN(false, 1, 7777, role))
		_, seg := b.next() // a challenge
		require.EqualValues(t, packet.FlagACK, seg.Flags())
		require.EqualValues(t, uint32(cookieISS+1), seg.Seq())
		require.EqualValues(t, 101, seg.Ack())
		time.Sleep(600 * time.Millisecond) // gVisor limits them
	}
	require.Equal(t, 1, b.h.proofs())
	require.Zero(t, b.h.bareSYNs())
	b.link.Inject(makeSYN(false, 1, 100, 0))
	require.Equal(t, 1, b.h.bareSYNs())
	require.False(t, c.Over())
}

// A client may take a tuple again at once, whatever is left of its last connection here.
func TestProvedAgain(t *testing.T) {
	b := newBench(t, Config{})
	b.prove(1, 100, packet.RoleConfirm, "first")
	c := b.provedConn()
	b.prove(1, 50_000, packet.RoleConfirm, "second")
	next := b.provedConn()
	require.EqualValues(t, 50_000, next.ISN())
	_, err := c.Write([]byte("x"))
	require.Error(t, err, "its tuple is another's")
	next.Abort()
	_, seg := b.next()
	for seg.Flags()&packet.FlagRST == 0 {
		_, seg = b.next()
	}
	for _, role := range []packet.Role{packet.RoleConfirm, 0} {
		isn := uint32(90_000) + uint32(role)
		b.prove(1, isn, role, "third")
		last := b.provedConn()
		require.Equal(t, isn, last.ISN())
		last.Forget()
	}
	b.h.refuse = true
	b.prove(1, 7, packet.RoleConfirm, "late")
	require.Empty(t, b.h.accepted)
}

// A client that begins anew when it sees the reset of its last connection may be faster
// than gVisor, which is still led for that: only an endpoint waits for it, however many
// connections there were between.
func TestProvedBehindReset(t *testing.T) {
	b := newBench(t, Config{})
	b.prove(1, 100, packet.RoleConfirm, "first")
	c := b.provedConn()
	led := make(chan struct{})
	c.f.left = led
	c.Abort()
	for isn := range uint32(3) {
		b.prove(1, 50_000+isn, packet.RoleConfirm, "next")
		c = b.provedConn()
		require.EqualValues(t, 50_000+isn, c.ISN())
		if isn == 0 {
			continue // this one stays a mini socket
		}
		c.QuickACK()
		time.Sleep(10 * time.Millisecond)
		require.True(t, c.f.state().led())
	}
	close(led)
	c.grown(t)
	require.Empty(t, b.h.failures())
}

// A client that resets at once, and one whose connection is forgotten before gVisor
// knows it, leave nothing either.
func TestProvedGone(t *testing.T) {
	b := newBench(t, Config{})
	for i := range uint16(50) {
		b.prove(i+1, 100, packet.RoleConfirm, "")
		if i%2 == 0 {
			b.link.Inject(segmentOf(clientAddr(i+1), serverAddr(false), 101, 0, packet.FlagRST, nil, nil))
		} else {
			b.s.Forget(Tuple{Local: serverAddr(false), Remote: clientAddr(i + 1)})
		}
	}
	for len(b.h.accepted) > 0 {
		select {
		case c := <-b.h.accepted:
			c.Forget()
		case <-time.After(time.Millisecond):
		}
	}
	require.Zero(t, b.s.Stats().Flows)
}

func clientAddr(port uint16) netip.AddrPort { return netip.AddrPortFrom(client4, port) }

// stampCookie is the timestamp of the SYN-ACK for a SYN that announced an MSS (0: none) and a window
// scale (-1: none). tick is whatever its maker likes.
func stampCookie(mss uint16, ws int, sack bool, nonce uint16, tick uint8) uint32 {
	stamp := uint32(nonce)<<16 | uint32(tick)<<8
	if ws < 0 {
		ws = noScale
	}
	stamp |= uint32(ws) << scaleShift
	if sack {
		stamp |= sackBit
	}
	for i, size := range cookieSizes() {
		if mss >= size {
			stamp = stamp&^mssBits | uint32(i)
		}
	}
	return stamp
}

// cookieReply is the header of a segment that repeats stamp.
func cookieReply(stamp uint32) packet.TCP {
	t := make(packet.TCP, packet.TCPMinLen, packet.TCPMaxLen)
	t.SetSeq(101)
	t.SetAck(5001)
	t.SetFlags(packet.FlagACK)
	t = append(t, packet.KindNOP, packet.KindNOP, packet.KindTimestamps, packet.TimestampsLen, 0, 0, 0, 9)
	t = binary.BigEndian.AppendUint32(t, stamp)
	t.SetHeaderLen(len(t))
	return t
}

// TestReadCookie: what a SYN asked for comes back, and the SYN made of it asks for the same.
func TestReadCookie(t *testing.T) {
	for _, mss := range cookieSizes() {
		for _, ws := range []int{-1, 0, 7, 14} {
			for _, sack := range []bool{false, true} {
				p, ok := readCookie(cookieReply(stampCookie(mss+3, ws, sack, 0xbeef, 1)))
				require.True(t, ok)
				want := packet.TCPOptions{
					MSS: mss, WS: int8(ws), SACK: sack, TS: true, TSVal: 9,
					Option: packet.Option{Version: packet.OptionVersion, Role: packet.RoleOffer, Nonce: 0xbeef},
				}
				require.Equal(t, want, p.Ask)
				require.EqualValues(t, 100, p.ISN)
				require.EqualValues(t, 5000, p.ISS)
				syn := p.SYN(cookieReply(0))
				want.Option = packet.Option{}
				require.Equal(t, want, packet.ParseTCPOptions(syn.Options()))
				require.EqualValues(t, 100, syn.Seq())
				require.EqualValues(t, packet.FlagSYN, syn.Flags())
			}
		}
	}
}

// TestReadCookieTruncated: a segment without whole timestamps, or of another kind, proves nothing.
func TestReadCookieTruncated(t *testing.T) {
	whole := cookieReply(1)
	for n := packet.TCPMinLen; n < len(whole); n += 4 {
		cut := append(packet.TCP(nil), whole[:n]...)
		_, ok := readCookie(cut)
		require.False(t, ok, n)
	}
	for _, flags := range []byte{0, packet.FlagSYN | packet.FlagACK, packet.FlagRST | packet.FlagACK} {
		whole.SetFlags(flags)
		_, ok := readCookie(whole)
		require.False(t, ok)
	}
}
