package netstack

import (
	"bytes"
	"encoding/binary"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// fuzzHeader turns fuzzed options into a TCP header.
func fuzzHeader(opts []byte) []byte {
	opts = opts[:min(len(opts), maxTCPHeader-minTCPHeader)]
	t := make([]byte, minTCPHeader, maxTCPHeader)
	t = append(t, opts...)
	for len(t)%4 != 0 {
		t = append(t, kindEOL)
	}
	t[12], t[13] = byte(len(t)/4)<<4, flagACK
	return t
}

func FuzzOptions(f *testing.F) {
	f.Add(synOptions())
	f.Add(appendOption(synOptions(), roleOffer, testNonce))
	f.Add(appendOption(timestamps(), roleConfirm, 1))
	f.Add([]byte{kindSACK, 34, 1, 2, 3, 4})
	f.Add([]byte{optionKind, optionLen, 'S', 'M', 'G', 'W', 0x21, 0, 1, 2})
	f.Add([]byte{kindTS, 1})
	f.Add([]byte{kindMSS})
	f.Fuzz(func(t *testing.T, opts []byte) {
		h := fuzzHeader(opts)
		o := parseOptions(h)
		require.GreaterOrEqual(t, o.ws, -1)
		require.LessOrEqual(t, o.ws, maxWS)
		require.LessOrEqual(t, o.role, byte(roleConfirm))
		short := withoutSACK(h[minTCPHeader:])
		require.Zero(t, len(short)%4)
		require.LessOrEqual(t, len(short), len(h)-minTCPHeader+3)
		again := parseOptions(fuzzHeader(short))
		if len(short) <= maxTCPHeader-minTCPHeader {
			require.Equal(t, o, again)
		}
		if len(short) <= maxTCPHeader-minTCPHeader-optionSpace && o.role == 0 {
			marked := parseOptions(fuzzHeader(appendOption(short, roleConfirm, 77)))
			if marked.role != 0 { // not behind a malformed option
				require.EqualValues(t, roleConfirm, marked.role)
				require.EqualValues(t, 77, marked.nonce)
			}
		}
		x := translation{seq: 12345, ts: 999}
		before := append([]byte(nil), h...)
		x.out(h, true)
		require.Equal(t, seqOf(before)+12345, seqOf(h))
		for _, kind := range []byte{kindTS, kindWS, optionKind} {
			blankOption(h, kind)
		}
		after := parseOptions(h)
		require.False(t, after.ts)
		require.Equal(t, -1, after.ws)
		require.Zero(t, after.role)
	})
}

// Incremental and full checksums agree, for options at any offset.
func TestTranslationChecksum(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		opts := rapid.SliceOfN(rapid.SampledFrom([]byte{kindNOP}), 0, 3).Draw(r, "pad")
		opts = append(opts, kindTS, 10)
		opts = append(opts, rapid.SliceOfN(rapid.Byte(), 8, 8).Draw(r, "ts")...)
		for len(opts)%4 != 0 {
			opts = append(opts, kindNOP)
		}
		payload := rapid.SliceOfN(rapid.Byte(), 0, 50).Draw(r, "payload")
		tup := makeTuple(1)
		pkt := segmentOf(tup.Local, tup.Remote, rapid.Uint32().Draw(r, "seq"), rapid.Uint32().Draw(r, "ack"), flagACK, opts, payload)
		x := translation{
			seq: rapid.Uint32().Draw(r, "dseq"), ts: rapid.Uint32().Draw(r, "dts"),
			wsNS: rapid.Uint8Range(0, 14).Draw(r, "wsns"), ws: rapid.Uint8Range(0, 14).Draw(r, "ws"),
		}
		_, tcp, _ := parseTCP(pkt)
		old := append([]byte(nil), tcp...)
		x.out(tcp, true)
		p, tcp, ok := parseTCP(pkt)
		if !ok {
			r.Fatal("not a segment any more")
		}
		buf := rawBuffer(pkt)
		defer buf.DecRef()
		if !p.tcpSumOK(buf) {
			r.Fatal("checksum")
		}
		if seqOf(tcp) != seqOf(old)+x.seq || parseOptions(tcp).tsVal != parseOptions(old).tsVal+x.ts {
			r.Fatal("translation")
		}
	})
}

func TestTranslationIn(t *testing.T) {
	x := translation{seq: 1000, ts: 50}
	opts := append(timestamps(), kindNOP, kindNOP, kindSACK, 18)
	for _, v := range []uint32{2000, 2100, 3000, 3100} {
		opts = binary.BigEndian.AppendUint32(opts, v)
	}
	binary.BigEndian.PutUint32(opts[8:], 51) // echoed timestamp
	tup := makeTuple(1)
	pkt := segmentOf(tup.Local, tup.Remote, 7, 1500, flagACK, opts, nil)
	_, tcp, _ := parseTCP(pkt)
	x.in(tcp)
	require.EqualValues(t, 7, seqOf(tcp))
	require.EqualValues(t, 500, ackOf(tcp))
	require.EqualValues(t, 1, binary.BigEndian.Uint32(tcp[28:]))
	for i, want := range []uint32{1000, 1100, 2000, 2100} {
		require.Equal(t, want, binary.BigEndian.Uint32(tcp[36+4*i:]))
	}
	tcp[13] = flagRST // no ACK: the field means nothing
	x.in(tcp)
	require.EqualValues(t, 500, ackOf(tcp))
}

// FuzzDeliver throws packets at a stack that has a connection of each kind. The
// checksums of most are put right, so that they get past the first check.
func FuzzDeliver(f *testing.F) {
	syn := makeSYN(false, 1, 100, roleOffer)
	seeds := [][]byte{
		syn, makeSYN(true, 1, 100, roleOffer), makeSYN(false, 1, 100, 0),
		makeSYNACK(syn, 5000, roleAccept, testNonce, 101),
		segmentOf(makeTuple(1).Local, makeTuple(1).Remote, 101, 5001, flagACK, timestamps(), []byte("data")),
		segmentOf(makeTuple(1).Remote, makeTuple(1).Local, 5001, 101, flagACK|flagFIN, timestamps(), nil),
		segmentOf(makeTuple(1).Remote, makeTuple(1).Local, 5001, 101, flagRST, nil, nil),
		segmentOf(clientAddr(9), serverAddr(false), 101, cookieISS+1, flagACK, timestamps(), []byte("proved")),
		tooBig(server4, syn, 1300), tooBig(server6, makeSYN(true, 1, 100, 0), 1300),
		{0x45},
		{0x60},
		nil,
	}
	for _, s := range seeds {
		f.Add(s, true)
		f.Add(s, false)
		for _, n := range []int{10, 20, 30, 39, 40, 41, 50} {
			f.Add(s[:min(n, len(s))], true)
		}
	}
	f.Fuzz(func(t *testing.T, pkt []byte, fix bool) {
		var bench struct {
			s    *Stack
			link *PacketLink
		}
		bench.link = NewPacketLink(testMTU, func([]byte) {})
		h := newRecorder()
		h.proves = true
		s, err := New(Config{Link: bench.link, Handler: h})
		require.NoError(t, err)
		defer s.Close()
		c, err := s.Adopt(t.Context(), syn, makeSYNACK(syn, 5000, roleAccept, testNonce, 101), time.Millisecond)
		require.NoError(t, err)
		defer c.Forget()
		bench.link.Inject(makeSYNOf(Tuple{Local: makeTuple(1).Remote, Remote: makeTuple(2).Local}, 7, roleOffer))
		pkt = bytes.Clone(pkt)
		if fix {
			repair(pkt)
		}
		bench.link.Inject(pkt)
		bench.link.Inject(pkt)
	})
}

// repair puts lengths and checksums of a TCP packet right, if it is one.
func repair(pkt []byte) {
	if len(pkt) < minIPv4Header {
		return
	}
	hlen := ipv6Header
	if pkt[0]>>4 == 4 {
		hlen = int(pkt[0]&15) * 4
	}
	if hlen < minIPv4Header || len(pkt) < hlen+minTCPHeader {
		return
	}
	setLength(pkt[:hlen], len(pkt)-hlen)
	p, ok := parseInet(pkt, len(pkt))
	if !ok || p.proto != protoTCP {
		return
	}
	pkt[hlen+16], pkt[hlen+17] = 0, 0
	buf := rawBuffer(pkt)
	defer buf.DecRef()
	sum := ^sumOf(p, buf)
	binary.BigEndian.PutUint16(pkt[hlen+16:], sum)
}

// A SYN cut off anywhere is no SYN, and nothing breaks.
func TestTruncation(t *testing.T) {
	b := newBench(t, Config{})
	for _, v6 := range []bool{false, true} {
		whole := makeSYN(v6, 1, 100, roleOffer)
		for n := range whole {
			b.link.Inject(whole[:n])
			_, err := b.s.Adopt(t.Context(), whole[:n], makeSYNACK(whole, 1, roleAccept, testNonce, 101), 0)
			require.ErrorIs(t, err, ErrPacket)
		}
	}
	require.Zero(t, b.h.offers())
	b.silent()
}
