package ebpf

import (
	"encoding/binary"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

// checksumOK verifies the TCP checksum of a raw IP packet.
func checksumOK(pkt []byte) bool {
	addrs, seg, err := splitTCP(pkt)
	if err != nil {
		return false
	}
	sum := add16(add16(uint32(protocolTCP)+uint32(len(seg)), addrs), seg)
	for sum > 0xffff {
		sum = sum&0xffff + sum>>16
	}
	return sum == 0xffff
}

// A segment whose checksum was computed by tshark's rules by hand: RFC 1071.
func TestSetChecksumVector(t *testing.T) {
	s := segment{src: addrPort("10.0.0.1:1"), dst: addrPort("10.0.0.2:2"), flags: flagSYN, seq: 1}
	pkt := s.bytes(t)
	// Words: 0a00+0001+0a00+0002 (addresses) +0006+0014 (protocol, length)
	// +0001+0002+0000+0001+0000+0000+5002+fde8+0000+0000 = 0x1620b, folded 620c.
	require.Equal(t, ^uint16(0x620c), binary.BigEndian.Uint16(pkt[ip4Len+tcpChecksum:]))
	require.True(t, checksumOK(pkt))
}

func TestSetChecksumTruncated(t *testing.T) {
	for _, src := range []string{"10.0.0.1:1", "[fd00::1]:1"} {
		dst := "10.0.0.2:2"
		if src[0] == '[' {
			dst = "[fd00::2]:2"
		}
		pkt := segment{src: addrPort(src), dst: addrPort(dst), flags: flagSYN, options: pad(timestamps())}.bytes(t)
		header := len(pkt) - tcpLen - 12
		for n := range header + tcpLen {
			require.ErrorIs(t, setChecksum(pkt[:n]), os.ErrInvalid)
		}
	}
}

func FuzzSetChecksum(f *testing.F) {
	f.Add([]byte{0x45, 19: 0, 39: 0})
	f.Add(append([]byte{0x4f}, make([]byte, 100)...))
	f.Add(append([]byte{0x60, 0, 0, 0, 0, 20, 6, 64}, make([]byte, 52)...))
	f.Fuzz(func(t *testing.T, pkt []byte) {
		if len(pkt) > 2000 {
			return
		}
		if setChecksum(pkt) == nil {
			require.True(t, checksumOK(pkt))
		}
	})
}

func FuzzDropOption(f *testing.F) {
	f.Add([]byte{0x45, 19: 0, 39: 0})
	f.Add(append([]byte{0x4f}, make([]byte, 100)...))
	f.Add([]byte("E\x00\x00<\x00\x00\x00\x00@\x06\x00\x00\x0a\x00\x00\x01\x0a\x00\x00\x02\x00\x01\x00\x02" +
		"\x00\x00\x00\x00\x00\x00\x00\x00\x80\x02\x00\x00\x00\x00\x00\x00\x01\xfe\x0aSMGW\x11\x00\x00\x01\x01"))
	f.Fuzz(func(t *testing.T, pkt []byte) {
		if dropOption(pkt) != nil {
			return
		}
		if s, ok := readSegment(pkt); ok {
			_, _, has := s.offer()
			require.False(t, has)
		}
	})
}

func FuzzParseEvent(f *testing.F) {
	f.Add(make([]byte, binary.Size(smcgwEvent{})))
	f.Add([]byte{1, 2, 3})
	f.Fuzz(func(t *testing.T, b []byte) {
		e, err := parseEvent(b)
		if err == nil {
			_ = e.Tuple.String()
			require.LessOrEqual(t, e.Rule, MaxRules)
		}
	})
}

func TestTupleKey(t *testing.T) {
	for _, v := range []Tuple{
		{addrPort("10.0.0.1:65535"), addrPort("10.0.0.2:1")},
		{addrPort("[fd00::1]:258"), addrPort("[fd00::2]:6379")},
	} {
		k, err := v.key()
		require.NoError(t, err)
		require.Equal(t, v, k.tuple())
	}
	mapped, err := Tuple{addrPort("[::ffff:10.0.0.1]:5"), addrPort("10.0.0.2:6")}.key()
	require.NoError(t, err)
	require.Equal(t, Tuple{addrPort("10.0.0.1:5"), addrPort("10.0.0.2:6")}, mapped.tuple())
	_, err = Tuple{addrPort("10.0.0.1:5"), addrPort("[fd00::1]:6")}.key()
	require.Error(t, err)
	_, err = Tuple{}.key()
	require.Error(t, err)
}

// The option is dropped wherever it is, and nothing else is.
func TestDropOption(t *testing.T) {
	for lead := range 20 {
		nops := make([]byte, lead)
		for i := range nops {
			nops[i] = 1
		}
		s := segment{src: addrPort("[fd00::1]:1"), dst: addrPort("[fd00::2]:2"), options: pad(nops, timestamps(), smgw(roleOffer, 5))}
		pkt := s.bytes(t)
		require.NoError(t, dropOption(pkt))
		got, ok := readSegment(pkt)
		require.True(t, ok)
		require.Equal(t, pad(nops, timestamps(), []byte{1, 1, 1, 1, 1, 1, 1, 1, 1, 1}), got.options)
		for n := range len(pkt) {
			require.ErrorIs(t, dropOption(pkt[:n]), os.ErrInvalid)
		}
	}
}

// The Go lists must follow the enumerations of maps.h.
func TestNamesMatchC(t *testing.T) {
	require.EqualValues(t, smcgwStatSTAT_SLOTS, len(statNames))
	require.Equal(t, "event_lost", statNames[smcgwStatSTAT_EVENT_LOST])
	require.Equal(t, "syn_returned", statNames[smcgwStatSTAT_SYN_RETURNED])
	require.Equal(t, "dead", StateDead.String())
	require.Equal(t, "state(77)", State(77).String())
	require.Equal(t, "server", SideServer.String())
}
