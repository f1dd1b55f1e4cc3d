package wire

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// known are all opcodes of the package.
func known() (all []Opcode) {
	for o := range 256 {
		if Opcode(o).Known() {
			all = append(all, Opcode(o))
		}
	}
	return all
}

// full is a header with every field set that its opcode has.
func full(o Opcode) Header {
	h := Header{
		Opcode: o, Solicited: true, Migrated: true, AckReq: true, FECN: true, BECN: true,
		PKey: 0x8001, DestQP: 0xa1a2a3, PSN: 0xb1b2b3,
		QKey: 0xc1c2c3c4, SrcQP: 0xd1d2d3,
		VA: 0xe1e2e3e4e5e6e7e8, RKey: 0xf1f2f3f4, Length: 0x91929394,
		SwapAdd: 0x1112131415161718, Compare: 0x2122232425262728,
		Syndrome: NAKRemoteAccess, MSN: 0x414243, Orig: 0x5152535455565758,
		Imm: 0x61626364, InvRKey: 0x71727374,
	}
	return only(h)
}

// only clears what the opcode of a header does not have.
func only(h Header) Header {
	t := h.Opcode.Traits()
	if t&HasDETH == 0 {
		h.QKey, h.SrcQP = 0, 0
	}
	if t&(HasRETH|HasAtomicETH) == 0 {
		h.VA, h.RKey = 0, 0
	}
	if t&HasRETH == 0 {
		h.Length = 0
	}
	if t&HasAtomicETH == 0 {
		h.SwapAdd, h.Compare = 0, 0
	}
	if t&HasAETH == 0 {
		h.Syndrome, h.MSN = 0, 0
	}
	if t&HasAtomicAckETH == 0 {
		h.Orig = 0
	}
	if t&HasImm == 0 {
		h.Imm = 0
	}
	if t&HasIETH == 0 {
		h.InvRKey = 0
	}
	return h
}

func genHeader(t *rapid.T) Header {
	u24 := rapid.Uint32Range(0, mask24)
	return only(Header{
		Opcode:    rapid.SampledFrom(known()).Draw(t, "opcode"),
		Solicited: rapid.Bool().Draw(t, "solicited"),
		Migrated:  rapid.Bool().Draw(t, "migrated"),
		AckReq:    rapid.Bool().Draw(t, "ack"),
		FECN:      rapid.Bool().Draw(t, "fecn"),
		BECN:      rapid.Bool().Draw(t, "becn"),
		PKey:      rapid.Uint16().Draw(t, "pkey"),
		DestQP:    u24.Draw(t, "qp"),
		PSN:       u24.Draw(t, "psn"),
		QKey:      rapid.Uint32().Draw(t, "qkey"),
		SrcQP:     u24.Draw(t, "source qp"),
		VA:        rapid.Uint64().Draw(t, "va"),
		RKey:      rapid.Uint32().Draw(t, "rkey"),
		Length:    rapid.Uint32().Draw(t, "length"),
		SwapAdd:   rapid.Uint64().Draw(t, "swap"),
		Compare:   rapid.Uint64().Draw(t, "compare"),
		Syndrome:  Syndrome(rapid.Byte().Draw(t, "syndrome")),
		MSN:       u24.Draw(t, "msn"),
		Orig:      rapid.Uint64().Draw(t, "orig"),
		Imm:       rapid.Uint32().Draw(t, "imm"),
		InvRKey:   rapid.Uint32().Draw(t, "key"),
	})
}

// packet is a UDP payload with an ICRC of zeros.
func packet(h Header, payload []byte) []byte {
	b := append(h.Append(nil, len(payload)), payload...)
	return append(b, make([]byte, Pad(len(payload))+ICRCLen)...)
}

// The layouts of IBTA vol. 1, 9.2 to 9.3, as bytes.
func TestLayout(t *testing.T) {
	const (
		deth      = "c1c2c3c4 00d1d2d3"
		reth      = "e1e2e3e4e5e6e7e8 f1f2f3f4 91929394"
		aeth      = "62 414243"
		atomic    = "e1e2e3e4e5e6e7e8 f1f2f3f4 1112131415161718 2122232425262728"
		atomicAck = "5152535455565758"
		imm       = "61626364"
		ieth      = "71727374"
		reserved  = "00000000 00000000 00000000 00000000"
	)
	with := map[Opcode]string{
		0x00: "", 0x01: "", 0x02: "", 0x03: imm, 0x04: "", 0x05: imm, 0x06: reth, 0x07: "", 0x08: "", 0x09: imm,
		0x0a: reth, 0x0b: reth + imm, 0x0c: reth, 0x0d: aeth, 0x0e: "", 0x0f: aeth, 0x10: aeth, 0x11: aeth,
		0x12: aeth + atomicAck, 0x13: atomic, 0x14: atomic, 0x16: ieth, 0x17: ieth,
		0x20: "", 0x21: "", 0x22: "", 0x23: imm, 0x24: "", 0x25: imm, 0x26: reth, 0x27: "", 0x28: "", 0x29: imm,
		0x2a: reth, 0x2b: reth + imm,
		0x64: deth, 0x65: deth + imm,
		0x81: reserved,
	}
	for o := range 256 {
		o := Opcode(o)
		extensions, ok := with[o]
		require.Equal(t, ok, o.Known(), "%v", o)
		if !ok {
			continue
		}
		h := full(o)
		want := append([]byte{byte(o), 0xf0, 0x80, 0x01, 0xc0, 0xa1, 0xa2, 0xa3, 0x80, 0xb1, 0xb2, 0xb3}, unhex(t, extensions)...)
		require.Equal(t, want, h.Append(nil, 1), "%v", o)
		require.Equal(t, len(want), h.Len())
		require.LessOrEqual(t, h.Len(), MaxHeaderLen)
	}
}

func TestRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := genHeader(t)
		payload := rapid.SliceOfN(rapid.Byte(), 0, 9).Draw(t, "payload")
		got := full(RCCompareSwap) // leftovers are to be cleared
		body, err := got.Parse(packet(want, payload))
		require.NoError(t, err)
		require.Equal(t, want, got)
		require.True(t, bytes.Equal(payload, body))
		require.Equal(t, len(body), cap(body), "what is appended to a payload may not overwrite the ICRC")
	})
}

func TestAppendCutsTo24Bits(t *testing.T) {
	for _, o := range []Opcode{RCAcknowledge, UDSendOnly} {
		h := Header{Opcode: o, DestQP: 0xff000001, PSN: 0xff000002, SrcQP: 0xff000003, MSN: 0xff000004}
		want := only(Header{Opcode: o, DestQP: 1, PSN: 2, SrcQP: 3, MSN: 4})
		var got Header
		_, err := got.Parse(packet(h, nil))
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
}

func TestAppendKeepsWhatIsThere(t *testing.T) {
	h := full(RCWriteOnly)
	require.Equal(t, append([]byte("before"), h.Append(nil, 0)...), h.Append([]byte("before"), 0))
}

func TestPad(t *testing.T) {
	for n, want := range []int{0, 3, 2, 1, 0, 3} {
		require.Equal(t, want, Pad(n), "%d bytes", n)
	}
	require.Equal(t, 0, Pad(4096))
}

func TestParseTruncated(t *testing.T) {
	for _, o := range known() {
		h := full(o)
		whole := packet(h, nil)
		require.Len(t, whole, h.Len()+ICRCLen)
		for n := range whole {
			var got Header
			payload, err := got.Parse(whole[:n:n])
			require.ErrorIs(t, err, ErrTruncated, "%v, %d bytes", o, n)
			require.Nil(t, payload)
			require.Equal(t, Header{}, got)
		}
		require.Zero(t, testing.AllocsPerRun(100, func() { _, _ = new(Header).Parse(whole[:h.Len()]) }), "%v: the refusal", o)
	}
}

func TestParsePad(t *testing.T) {
	h := Header{Opcode: RCSendOnly}
	for payload := range 5 {
		for pad := range 4 {
			b := append(h.Append(nil, 0), make([]byte, payload+ICRCLen)...)
			b[1] |= byte(pad) << 4
			body, err := h.Parse(b)
			if pad > payload {
				require.ErrorIs(t, err, ErrPad)
				continue
			}
			require.NoError(t, err)
			require.Len(t, body, payload-pad)
		}
	}
}

func TestParseRefuses(t *testing.T) {
	var h Header
	for o := range 256 {
		b := make([]byte, BTHLen+64)
		b[0] = byte(o)
		_, err := h.Parse(b)
		if Opcode(o).Known() {
			require.NoError(t, err, "%v", Opcode(o))
		} else {
			require.ErrorIs(t, err, ErrOpcode, "%v", Opcode(o))
		}
		for version := byte(1); version < 16; version++ {
			b[1] = version
			_, err = h.Parse(b)
			require.ErrorIs(t, err, ErrVersion)
		}
	}
}

// Reserved bits of the BTH and the extension headers are ignored on receipt.
func TestParseIgnoresReservedBits(t *testing.T) {
	for _, o := range []Opcode{UDSendOnly, CNP} {
		want := full(o)
		b := packet(want, nil)
		b[4] |= 0x3f
		b[8] |= 0x7f
		if o == CNP {
			b[BTHLen+3] = 0xff
		} else {
			b[BTHLen+4] = 0xff
		}
		var got Header
		_, err := got.Parse(b)
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
}
