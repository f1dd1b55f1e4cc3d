package ebpf

import (
	"encoding/binary"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/packet"
)

// checksumOK verifies the TCP checksum of a raw IP packet.
func checksumOK(pkt []byte) bool {
	p, err := packet.ParseIP(pkt)
	return err == nil && p.Proto == packet.ProtoTCP && p.TransportSumOK()
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

func TestEventTruncated(t *testing.T) {
	for n := range binary.Size(smcgwEvent{}) {
		_, err := parseEvent(make([]byte, n))
		require.Error(t, err, n)
	}
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

// The option is dropped wherever it is, and nothing else is; the checksum is made.
func TestBare(t *testing.T) {
	for lead := range 20 {
		nops := make([]byte, lead)
		for i := range nops {
			nops[i] = 1
		}
		s := segment{src: addrPort("[fd00::1]:1"), dst: addrPort("[fd00::2]:2"), options: pad(nops, timestamps(), smgw(roleOffer, 5))}
		pkt := s.bytes(t)
		pkt[packet.IPv6Len+16] ^= 0xff
		require.NoError(t, bare(pkt))
		got, ok := readSegment(pkt)
		require.True(t, ok)
		require.Equal(t, pad(nops, timestamps(), []byte{1, 1, 1, 1, 1, 1, 1, 1, 1, 1}), got.options)
		require.True(t, checksumOK(pkt))
		for n := range len(pkt) {
			require.ErrorIs(t, bare(pkt[:n]), os.ErrInvalid)
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
