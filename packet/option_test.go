package packet

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/internal/golden"
)

func TestOptionGolden(t *testing.T) {
	for name, role := range map[string]Role{
		"option-offer": RoleOffer, "option-accept": RoleAccept, "option-confirm": RoleConfirm,
	} {
		o := Option{Version: OptionVersion, Role: role, Nonce: 0xbeef}
		require.Equal(t, golden.Vector(t, name), AppendOption(nil, o))
		require.Equal(t, o, ParseTCPOptions(golden.Vector(t, name)).Option)
	}
}

func TestOptionAnywhere(t *testing.T) {
	offer := golden.Vector(t, "option-offer")
	for _, before := range [][]byte{{1}, {1, 1}, {2, 4, 5, 0xb4, 1}, {254, 4, 0xf9, 0x89}, {254, 6, 0xe2, 0xd4, 0xc3, 0xd9}, golden.Unhex(t, `fe 0a 53 4d 47 57 21 00 00 01`)} {
		area := append(append([]byte{}, before...), offer...)
		area = append(area, 1, 0)
		area = append(area, golden.Vector(t, "option-accept")...)
		require.Equal(t, RoleOffer, ParseTCPOptions(area).Option.Role)
	}
}

func TestOptionRejected(t *testing.T) {
	for name, text := range map[string]string{
		"empty":             ``,
		"nops":              `01 01 01 01`,
		"end of list first": `00 fe 0a 53 4d 47 57 11 00 be ef`,
		"version 2":         `fe 0a 53 4d 47 57 21 00 be ef`,
		"version 0":         `fe 0a 53 4d 47 57 01 00 be ef`,
		"role 0":            `fe 0a 53 4d 47 57 10 00 be ef`,
		"role 4":            `fe 0a 53 4d 47 57 14 00 be ef`,
		"other exid":        `fe 0a e2 d4 c3 d9 11 00 be ef`,
		"length 11":         `fe 0b 53 4d 47 57 11 00 be ef 00`,
		"length 0":          `fe 00 53 4d 47 57 11 00 be ef`,
		"kind 253":          `fd 0a 53 4d 47 57 11 00 be ef`,
		"broken before":     `02 01 fe 0a 53 4d 47 57 11 00 be ef`,
	} {
		require.Zero(t, ParseTCPOptions(golden.Unhex(t, text)).Option, name)
	}
}

func TestOptionTruncated(t *testing.T) {
	b := golden.Vector(t, "option-offer")
	for i := range b {
		require.Zero(t, ParseTCPOptions(b[:i]).Option)
	}
}

func TestOptionFlagsIgnored(t *testing.T) {
	o := ParseTCPOptions(golden.Unhex(t, `fe 0a 53 4d 47 57 11 80 be ef`)).Option
	require.Equal(t, Option{Version: 1, Role: RoleOffer, Flags: 0x80, Nonce: 0xbeef}, o)
}

func TestOptionAllocs(t *testing.T) {
	area := golden.Vector(t, "option-accept")
	buf := make([]byte, 0, OptionLen)
	require.Zero(t, testing.AllocsPerRun(100, func() {
		buf = AppendOption(buf[:0], ParseTCPOptions(area).Option)
	}))
}

func FuzzStripOption(f *testing.F) {
	f.Add(golden.Unhex(f, synV4))
	f.Add(golden.Unhex(f, synV6))
	f.Fuzz(func(t *testing.T, pkt []byte) {
		s, err := ParseSegment(pkt)
		offered := err == nil && ParseTCPOptions(s.Options).Option.Role != 0
		before := bytes.Clone(pkt)
		stripped, err := StripOption(pkt)
		require.Equal(t, stripped, !bytes.Equal(before, pkt))
		if err == nil {
			require.True(t, stripped || !offered)
			again, err := StripOption(pkt)
			require.NoError(t, err)
			require.False(t, again)
		}
		if SetTCPChecksum(pkt) == nil {
			requireChecksum(t, pkt)
		}
	})
}
