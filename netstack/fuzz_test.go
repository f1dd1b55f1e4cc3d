package netstack

import (
	"bytes"
	"testing"
	"time"

	"github.com/smcgw/smcgw/lab/wire"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/packet"
)

// fuzzHeader turns fuzzed options into a TCP header.
func fuzzHeader(opts []byte) packet.TCP {
	opts = opts[:min(len(opts), packet.TCPMaxLen-packet.TCPMinLen)]
	t := make(packet.TCP, packet.TCPMinLen, packet.TCPMaxLen)
	t = append(t, opts...)
	for len(t)%4 != 0 {
		t = append(t, packet.KindEOL)
	}
	t[12], t[13] = byte(len(t)/4)<<4, packet.FlagACK
	return t
}

func FuzzOptions(f *testing.F) {
	f.Add(synOptions())
	f.Add(appendOption(synOptions(), packet.RoleOffer, testNonce))
	f.Add(appendOption(timestamps(), packet.RoleConfirm, 1))
	f.Add([]byte{packet.KindSACK, 34, 1, 2, 3, 4})
	f.Add([]byte{packet.KindExperiment, packet.OptionLen, 'S', 'M', 'G', 'W', 0x21, 0, 1, 2})
	f.Add([]byte{packet.KindTimestamps, 1})
	f.Add([]byte{packet.KindMSS})
	f.Fuzz(func(t *testing.T, opts []byte) {
		h := fuzzHeader(opts)
		o := packet.ParseTCPOptions(h.Options())
		short := h.Options().AppendWithoutSACK(nil)
		again := packet.ParseTCPOptions(fuzzHeader(short).Options())
		if len(short) <= packet.TCPMaxLen-packet.TCPMinLen {
			require.Equal(t, o, again)
		}
		if len(short) <= packet.TCPMaxLen-packet.TCPMinLen-optionSpace && o.Option.Role == 0 {
			marked := packet.ParseTCPOptions(fuzzHeader(appendOption(short, packet.RoleConfirm, 77)).Options())
			if marked.Option.Role != 0 { // not after a malformed option
				require.EqualValues(t, packet.RoleConfirm, marked.Option.Role)
				require.EqualValues(t, 77, marked.Option.Nonce)
			}
		}
	})
}

// FuzzDeliver throws packets at a stack that has a connection of each kind. The
// checksums of most are put right, so that they get past the first check.
func FuzzDeliver(f *testing.F) {
	syn := makeSYN(false, 1, 100, packet.RoleOffer)
	seeds := [][]byte{
		syn, makeSYN(true, 1, 100, packet.RoleOffer), makeSYN(false, 1, 100, 0),
		makeSYNACK(syn, 5000, packet.RoleAccept, testNonce, 101),
		segmentOf(makeTuple(1).Local, makeTuple(1).Remote, 101, 5001, packet.FlagACK, timestamps(), []byte("data")),
		segmentOf(makeTuple(1).Remote, makeTuple(1).Local, 5001, 101, packet.FlagACK|packet.FlagFIN, timestamps(), nil),
		segmentOf(makeTuple(1).Remote, makeTuple(1).Local, 5001, 101, packet.FlagRST, nil, nil),
		segmentOf(clientAddr(9), serverAddr(false), 101, cookieISS+1, packet.FlagACK, timestamps(), []byte("proved")),
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
			link *wire.Pipe
		}
		bench.link = wire.NewPipe(testMTU, func([]byte) {})
		h := newRecorder()
		s, err := New(Config{Link: bench.link, Handler: h})
		require.NoError(t, err)
		defer s.Close()
		c, err := s.Adopt(syn, makeSYNACK(syn, 5000, packet.RoleAccept, testNonce, 101), time.Millisecond)
		require.NoError(t, err)
		defer c.Forget()
		bench.link.Inject(makeSYNOf(Tuple{Local: makeTuple(1).Remote, Remote: makeTuple(2).Local}, 7, packet.RoleOffer))
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
	if len(pkt) < packet.IPv4MinLen {
		return
	}
	hlen := packet.IPv6Len
	if pkt[0]>>4 == 4 {
		hlen = int(pkt[0]&15) * 4
	}
	if hlen < packet.IPv4MinLen || len(pkt) < hlen+packet.TCPMinLen {
		return
	}
	packet.SetPayloadLen(pkt[:hlen], len(pkt)-hlen)
	p, ok := parseIP(pkt, len(pkt))
	if !ok || p.Proto != packet.ProtoTCP {
		return
	}
	t := packet.TCP(pkt[hlen:])
	t.SetChecksum(0)
	t.SetChecksum(^packet.Sum(p.Payload, packet.PseudoSum(p.Header, packet.ProtoTCP, len(p.Payload))))
}

// A SYN cut off anywhere is no SYN, and nothing breaks.
func TestTruncation(t *testing.T) {
	b := newBench(t, Config{})
	for _, v6 := range []bool{false, true} {
		whole := makeSYN(v6, 1, 100, packet.RoleOffer)
		for n := range whole {
			b.link.Inject(whole[:n])
			_, err := b.s.Adopt(whole[:n], makeSYNACK(whole, 1, packet.RoleAccept, testNonce, 101), 0)
			require.ErrorIs(t, err, ErrPacket)
		}
	}
	require.Zero(t, b.h.offers())
	b.silent()
}
