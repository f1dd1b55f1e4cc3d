package segment

import (
	"encoding/binary"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/smcgw/smcgw/packet"
)

var (
	local  = netip.MustParseAddrPort("10.0.0.1:1000")
	remote = netip.MustParseAddrPort("10.0.0.2:7000")
)

// newSegment returns a packet, and its TCP header.
func newSegment(seq, ack uint32, opts, payload []byte) ([]byte, packet.TCP) {
	pkt := packet.Segment{Src: local, Dst: remote, Seq: seq, Ack: ack, Flags: packet.FlagACK, Options: opts, Payload: payload}.Append(nil)
	p, err := packet.ParseIP(pkt)
	if err != nil {
		panic(err)
	}
	t, err := p.TCP()
	if err != nil {
		panic(err)
	}
	return pkt, t
}

// Incremental and full checksums agree, for options at any offset.
func TestMapChecksum(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		opts := rapid.SliceOfN(rapid.SampledFrom([]byte{packet.KindNOP}), 0, 3).Draw(r, "pad")
		opts = append(opts, packet.KindTimestamps, 10)
		opts = append(opts, rapid.SliceOfN(rapid.Byte(), 8, 8).Draw(r, "ts")...)
		for len(opts)%4 != 0 {
			opts = append(opts, packet.KindNOP)
		}
		payload := rapid.SliceOfN(rapid.Byte(), 0, 50).Draw(r, "payload")
		pkt, tcp := newSegment(rapid.Uint32().Draw(r, "seq"), rapid.Uint32().Draw(r, "ack"), opts, payload)
		x := Map{
			seq: rapid.Uint32().Draw(r, "dseq"), ts: rapid.Uint32().Draw(r, "dts"),
			wsNS: rapid.Uint8Range(0, 14).Draw(r, "wsns"), ws: rapid.Uint8Range(0, 14).Draw(r, "ws"),
		}
		old := append(packet.TCP(nil), tcp...)
		x.Out(tcp, true)
		p, err := packet.ParseIP(pkt)
		require.NoError(r, err)
		require.True(r, p.TransportSumOK())
		if tcp.Seq() != old.Seq()+x.seq || packet.ParseTCPOptions(tcp.Options()).TSVal != packet.ParseTCPOptions(old.Options()).TSVal+x.ts {
			r.Fatal("another difference")
		}
	})
}

func TestMapIn(t *testing.T) {
	x := Map{seq: 1000, ts: 50}
	opts := append(make([]byte, 12), packet.KindNOP, packet.KindNOP, packet.KindSACK, 18)
	for _, v := range []uint32{2000, 2100, 3000, 3100} {
		opts = binary.BigEndian.AppendUint32(opts, v)
	}
	copy(opts, []byte{packet.KindNOP, packet.KindNOP, packet.KindTimestamps, packet.TimestampsLen})
	binary.BigEndian.PutUint32(opts[8:], 51) // echoed timestamp
	_, tcp := newSegment(7, 1500, opts, nil)
	x.In(tcp)
	require.EqualValues(t, 7, tcp.Seq())
	require.EqualValues(t, 500, tcp.Ack())
	require.EqualValues(t, 1, binary.BigEndian.Uint32(tcp[28:]))
	for i, want := range []uint32{1000, 1100, 2000, 2100} {
		require.Equal(t, want, binary.BigEndian.Uint32(tcp[36+4*i:]))
	}
	tcp[13] = packet.FlagRST // no ACK: the field means nothing
	x.In(tcp)
	require.EqualValues(t, 500, tcp.Ack())
}

// An acknowledgement of what the endpoint has not sent again is one of what it has.
func TestMapRepeats(t *testing.T) {
	var x Map
	_, syn := newSegment(77, 0, nil, nil)
	x.Begin(syn, Origin{ISN: 1000, Sent: 1301}, -1)
	require.True(t, x.Ready())
	acked := func(ack uint32) uint32 {
		_, tcp := newSegment(7, ack, nil, nil)
		x.In(tcp)
		return tcp.Ack() - 78
	}
	require.Zero(t, acked(1301), "nothing was sent again yet")
	x.Sent(1101)
	require.EqualValues(t, 50, acked(1051))
	require.EqualValues(t, 100, acked(1301))
	x.Sent(1301)
	require.EqualValues(t, 300, acked(1301))
	require.EqualValues(t, 301, acked(1302), "of what was never sent: the endpoint's to judge")
}

// A reset is where the peer stands, also when the endpoint has not sent again what the peer has.
func TestMapResetBehindRepeats(t *testing.T) {
	var x Map
	_, syn := newSegment(77, 0, nil, nil)
	x.Begin(syn, Origin{ISN: 1000, Sent: 1301}, -1)
	for _, c := range []struct {
		flags      byte
		seq, again uint32 // in the endpoint's space; what it has sent again, on the wire
		want       uint32
	}{
		{packet.FlagACK, 78, 1001, 1001},
		{packet.FlagRST | packet.FlagACK, 78, 1001, 1301},
		{packet.FlagRST, 178, 1101, 1301},
		{packet.FlagRST | packet.FlagACK, 378, 1301, 1301},
		{packet.FlagRST | packet.FlagACK, 478, 1401, 1401},
	} {
		x.Sent(c.again)
		pkt, tcp := newSegment(c.seq, 6, nil, []byte("x"))
		tcp.SetFlags(c.flags)
		tcp.SetChecksum(0)
		p, err := packet.ParseIP(pkt)
		require.NoError(t, err)
		tcp.SetChecksum(^packet.Sum(p.Payload, packet.PseudoSum(p.Header, packet.ProtoTCP, len(p.Payload))))
		x.Out(tcp, true)
		require.Equal(t, c.want, tcp.Seq())
		require.True(t, p.TransportSumOK())
	}
}

// Options that are cut off anywhere are left alone.
func FuzzMap(f *testing.F) {
	for n := range 25 {
		f.Add([]byte{1, 1, packet.KindTimestamps, 10, 0, 0, 0, 1, 0, 0, 0, 2, 1, 1, packet.KindSACK, 10, 0, 0, 0, 3, 0, 0, 0, 4}[:min(n, 24)])
	}
	f.Fuzz(func(t *testing.T, opts []byte) {
		opts = opts[:min(len(opts), packet.TCPMaxLen-packet.TCPMinLen)&^3]
		_, tcp := newSegment(5, 6, opts, nil)
		x := Map{seq: 12345, ts: 999}
		x.Out(tcp, true)
		require.EqualValues(t, 12350, tcp.Seq())
		x.In(tcp)
		require.EqualValues(t, 6, tcp.Ack()+12345)
	})
}
