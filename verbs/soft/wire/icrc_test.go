package wire

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// vectors are frames from the IP header on. The first two come from adapters,
// by way of the tests of Scapy (test/contrib/roce.uts); the others follow the
// definition.
var vectors = []struct {
	name, frame string
	want        Header
	payload     string
}{
	{
		"CNP of a ConnectX-4 Lx",
		`45c2003c 718c4000 40119161 0a001101 0a001201 000012b7 00280000
		 8100ffff 40000118 00000000 00000000 00000000 00000000 00000000 82fd002a`,
		Header{Opcode: CNP, PKey: 0xffff, BECN: true, DestQP: 0x118},
		``,
	},
	{
		"UC SEND_ONLY",
		`45010040 04784000 4011b4d5 c0a80007 c0a80007 c00012b7 002caca2
		 2460ffff 000000d3 00cf1710 4630818b e28935d9 0e9a9550 5401be88 5e500000 78f353f3`,
		Header{Opcode: UCSendOnly, Migrated: true, PKey: 0xffff, DestQP: 211, PSN: 13571856},
		`4630818b e28935d9 0e9a9550 5401be88 5e50`,
	},
	{
		"RC WRITE_ONLY_WITH_IMM",
		`45000048 12344000 4011146f 0a000001 0a000002 c3a512b7 00340000
		 0bf0ffff 00000011 80000abc 00007f12 34567000 00001234 00000005
		 00000005 68656c6c 6f000000 cd627a51`,
		Header{
			Opcode: RCWriteOnlyImm, Solicited: true, Migrated: true, AckReq: true, PKey: 0xffff,
			DestQP: 0x11, PSN: 0xabc, VA: 0x7f1234567000, RKey: 0x1234, Length: 5, Imm: 5,
		},
		`68656c6c6f`,
	},
	{
		"RC SEND_ONLY over IPv6",
		`600003a5 001c1140 fd000000 00000000 00000000 00000001
		 fd000000 00000000 00000000 00000002 c3a512b7 001c0000
		 0440ffff 00000011 80fffffe 70696e67 6692d1a2`,
		Header{Opcode: RCSendOnly, Migrated: true, AckReq: true, PKey: 0xffff, DestQP: 0x11, PSN: 0xfffffe},
		`70696e67`,
	},
	{
		"UD SEND_ONLY of a MAD of zeros",
		`45000134 12344000 40111383 0a000001 0a000002 c00112b7 01200000
		 6440ffff 00000001 00000007 80010000 00000001` + strings.Repeat("00", 256) + `b7508d43`,
		Header{Opcode: UDSendOnly, Migrated: true, PKey: 0xffff, DestQP: 1, PSN: 7, QKey: 0x80010000, SrcQP: 1},
		strings.Repeat("00", 256),
	},
	{
		"RNR NAK",
		`45000030 12344000 40111487 0a000002 0a000001 c3a512b7 001c0000
		 1140ffff 00000012 00000abc 2e000001 deeb2761`,
		Header{Opcode: RCAcknowledge, Migrated: true, PKey: 0xffff, DestQP: 0x12, PSN: 0xabc, Syndrome: RNR | 14, MSN: 1},
		``,
	},
	{
		"ACK",
		`45000030 12344000 40111487 0a000002 0a000001 c3a512b7 001c0000
		 1140ffff 00000012 00000abc 1f000001 1a74b029`,
		Header{Opcode: RCAcknowledge, Migrated: true, PKey: 0xffff, DestQP: 0x12, PSN: 0xabc, Syndrome: ACK, MSN: 1},
		``,
	},
}

func TestVectors(t *testing.T) {
	for _, v := range vectors {
		t.Run(v.name, func(t *testing.T) {
			f, body := frame(unhex(t, v.frame)), unhex(t, v.payload)
			requireICRC(t, f)
			var h Header
			payload, err := h.Parse(f.payload())
			require.NoError(t, err)
			require.Equal(t, v.want, h)
			require.Equal(t, body, append([]byte{}, payload...))

			c := NewICRC(f.flow())
			require.Equal(t, f.payload(), seal(&c, f.id(), v.want.Append(nil, len(body)), body))
		})
	}
}

func genFlow(t *rapid.T) Flow {
	n := rapid.SampledFrom([]int{4, 16}).Draw(t, "address size")
	addr := func() netip.Addr {
		a, _ := netip.AddrFromSlice(rapid.SliceOfN(rapid.Byte(), n, n).Draw(t, "address"))
		if n == 16 && a.Is4In6() {
			a = netip.IPv6Loopback()
		}
		return a
	}
	return Flow{addr(), addr(), rapid.Uint16().Draw(t, "source port"), rapid.Uint16().Draw(t, "port")}
}

// Whatever the flow, the packet and the noise on the way, sender and receiver
// agree with the definition, and the receiver finds the identification.
func TestICRCModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		flow := genFlow(t)
		c := NewICRC(flow)
		h := genHeader(t)
		id := rapid.Uint16().Draw(t, "identification")
		payload := rapid.SliceOfN(rapid.Byte(), 0, 300).Draw(t, "payload")
		if rapid.Bool().Draw(t, "large") {
			payload = append(payload, make([]byte, 4096-len(payload))...)
		}
		d := seal(&c, id, h.Append(nil, len(payload)), payload)
		f := build(flow, id, rapid.Byte().Draw(t, "noise"), d)
		f.payload()[4] = rapid.Byte().Draw(t, "congestion bits")
		requireICRC(t, f)
	})
}

func TestICRCOfMappedAddresses(t *testing.T) {
	f := flow4
	f.Src, f.Dst = netip.AddrFrom16(f.Src.As16()), netip.AddrFrom16(f.Dst.As16())
	require.Equal(t, NewICRC(flow4), NewICRC(f))
}

// A datagram is bound to its flow. What damage does to the ICRC of IPv4 can look
// like another identification, but not for these.
func TestVerifyOfAnotherFlow(t *testing.T) {
	for _, flow := range []Flow{flow4, flow6} {
		own := NewICRC(flow)
		d := sealed(&own, 0, []byte("payload"))
		_, ok := own.Verify(0, d)
		require.True(t, ok)
		addr, port, dst := flow, flow, flow
		addr.Src = addr.Src.Next()
		dst.Dst = dst.Dst.Next()
		port.SrcPort++
		for _, other := range []Flow{addr, port, dst} {
			c := NewICRC(other)
			_, ok := c.Verify(0, d)
			require.False(t, ok, "%v", other)
		}
	}
}

// The length is covered, and bounded.
func TestVerifyLengths(t *testing.T) {
	for _, flow := range []Flow{flow4, flow6} {
		c := NewICRC(flow)
		d := sealed(&c, 1, make([]byte, 64))
		for n := range len(d) {
			_, ok := c.Verify(0, d[:n])
			require.False(t, ok, "%d bytes", n)
		}
		_, ok := c.Verify(0, append(d, 0))
		require.False(t, ok)

		longest := append(make([]byte, 0, MaxLen+1), sealed(&c, 1, make([]byte, MaxLen-MinLen))...)
		require.Len(t, longest, MaxLen)
		_, ok = c.Verify(0, longest)
		require.True(t, ok)
		_, ok = c.Verify(0, append(longest, 0))
		require.False(t, ok)
		_, ok = c.Verify(0, nil)
		require.False(t, ok)
	}
}

// Every single bit that is covered is protected, in the smallest and the largest
// datagram, though on IPv4 any of 2^16 identifications may explain the ICRC.
func TestVerifyFindsEverySingleBit(t *testing.T) {
	for _, flow := range []Flow{flow4, flow6} {
		c := NewICRC(flow)
		for _, size := range []int{0, 5, 4096} {
			d := sealed(&c, 0xbeef, make([]byte, size))
			for bit := range 8 * len(d) {
				d[bit/8] ^= 1 << (bit % 8)
				for _, expected := range []uint16{0xbeef, 0} {
					_, ok := c.Verify(expected, d)
					require.Equal(t, bit/8 == 4, ok, "bit %d of byte %d", bit%8, bit/8)
				}
				d[bit/8] ^= 1 << (bit % 8)
			}
		}
	}
}

// The same for all sizes between: no single bit, so many bytes after the
// identification, does to the register what a change of the identification does.
func TestNoSingleBitIsAnIdentification(t *testing.T) {
	for bit := range 32 {
		s := uint32(1) << bit
		for n := range idToPayload + MaxLen + 1 {
			if n >= 4 { // where the bits of s lie after the identification
				require.NotZero(t, s>>16, "bit %d, %d bytes on", bit, n)
			}
			s = stepBack(s)
		}
	}
}
