package wire

import (
	"encoding/binary"
	"encoding/hex"
	"hash/crc32"
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

var (
	flow4 = Flow{netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2"), 0xc3a5, 4791}
	flow6 = Flow{netip.MustParseAddr("fd00::1"), netip.MustParseAddr("fd00::2"), 0xc3a5, 4791}
)

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.Join(strings.Fields(s), ""))
	require.NoError(t, err)
	return b
}

// seal appends the rest of a packet to its headers.
func seal(c *ICRC, id uint16, hdr, payload []byte) []byte {
	n := len(hdr) + len(payload) + Pad(len(payload)) + ICRCLen
	state := c.Begin(id, n, hdr)
	d := append(append([]byte(nil), hdr...), payload...)
	d = append(d, make([]byte, Pad(len(payload)))...)
	return AppendICRC(d, Update(state, d[len(hdr):]))
}

// sealed is a whole UDP payload with an ICRC that verifies.
func sealed(c *ICRC, id uint16, payload []byte) []byte {
	h := Header{Opcode: RCSendMiddle, Migrated: true, PKey: 0xffff, DestQP: 0x12345, PSN: 0xabcdef}
	return seal(c, id, h.Append(nil, len(payload)), payload)
}

// frame is a packet from the IP header on.
type frame []byte

func (f frame) v6() bool { return f[0]>>4 == 6 }

func (f frame) udp() []byte {
	if f.v6() {
		return f[40:]
	}
	return f[20:]
}

func (f frame) payload() []byte { return f.udp()[8:] }

// id is what Verify is to find: 0 on IPv6.
func (f frame) id() uint16 {
	if f.v6() {
		return 0
	}
	return binary.BigEndian.Uint16(f[4:])
}

func (f frame) flow() Flow {
	flow := Flow{
		SrcPort: binary.BigEndian.Uint16(f.udp()),
		DstPort: binary.BigEndian.Uint16(f.udp()[2:]),
	}
	if f.v6() {
		flow.Src, flow.Dst = netip.AddrFrom16([16]byte(f[8:24])), netip.AddrFrom16([16]byte(f[24:40]))
	} else {
		flow.Src, flow.Dst = netip.AddrFrom4([4]byte(f[12:16])), netip.AddrFrom4([4]byte(f[16:20]))
	}
	return flow
}

// slowICRC is the definition: a copy of the frame, ones over what changes on the
// way, ones in front, CRC-32, little-endian.
func slowICRC(f frame) []byte {
	c := append(frame(nil), f[:len(f)-ICRCLen]...)
	ones := func(b []byte) {
		for i := range b {
			b[i] = 0xff
		}
	}
	if c.v6() {
		c[0] |= 0x0f
		ones(c[1:4])
		ones(c[7:8])
	} else {
		ones(c[1:2])
		ones(c[8:9])
		ones(c[10:12])
	}
	ones(c.udp()[6:8])
	ones(c.payload()[4:5])
	lrh := make([]byte, 8)
	ones(lrh)
	return binary.LittleEndian.AppendUint32(nil, crc32.ChecksumIEEE(append(lrh, c...)))
}

// build puts a UDP payload into a frame, with arbitrary bytes where headers may
// change on the way.
func build(f Flow, id uint16, noise byte, datagram []byte) frame {
	be := binary.BigEndian
	n := uint16(len(datagram))
	var b frame
	if f.Src.Is4() {
		b = append(b, 0x45, noise)
		b = be.AppendUint16(b, 28+n)
		b = be.AppendUint16(b, id)
		b = append(b, 0x40, 0, noise, 17, noise, ^noise)
	} else {
		b = append(b, 0x60|noise>>4, noise, noise, noise)
		b = be.AppendUint16(b, 8+n)
		b = append(b, 17, noise)
	}
	b = append(append(b, f.Src.AsSlice()...), f.Dst.AsSlice()...)
	b = be.AppendUint16(b, f.SrcPort)
	b = be.AppendUint16(b, f.DstPort)
	b = be.AppendUint16(b, 8+n)
	b = append(b, noise, ^noise)
	return append(b, datagram...)
}

// requireICRC checks a frame in every way that there is: the definition, what a
// sender computes, and what a receiver solves for.
func requireICRC(t rapid.TB, f frame) {
	t.Helper()
	d, c := f.payload(), NewICRC(f.flow())
	want := d[len(d)-ICRCLen:]
	require.Equal(t, want, slowICRC(f), "by definition")
	var h Header
	_, err := h.Parse(d)
	require.NoError(t, err)
	n := h.Len()
	state := Update(c.Begin(f.id(), len(d), d[:n]), d[n:len(d)-ICRCLen])
	require.Equal(t, want, AppendICRC(nil, state), "as sent")
	run := c.BeginRun(len(d), d)
	state = Update(run.At(f.id(), binary.BigEndian.Uint32(d[BTHLen-4:])), d[BTHLen:len(d)-ICRCLen])
	require.Equal(t, want, AppendICRC(nil, state), "as sent in a run")
	require.Equal(t, binary.LittleEndian.Uint32(want), Finish(state))
	for _, expected := range []uint16{f.id(), f.id() ^ 1, 0, 0xffff} {
		id, ok := c.Verify(expected, d)
		require.True(t, ok, "as received")
		if f.flow().Src.Is4() {
			require.Equal(t, f.id(), id)
		}
	}
}
