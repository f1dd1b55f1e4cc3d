package packet

import (
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
		got, offset, err := ParseOption(golden.Vector(t, name))
		require.NoError(t, err)
		require.Zero(t, offset)
		require.Equal(t, o, got)
	}
}

func TestOptionAnywhere(t *testing.T) {
	offer := golden.Vector(t, "option-offer")
	for _, before := range [][]byte{{1}, {1, 1}, {2, 4, 5, 0xb4, 1}, {254, 4, 0xf9, 0x89}, {254, 6, 0xe2, 0xd4, 0xc3, 0xd9}, golden.Unhex(t, `fe 0a 53 4d 47 57 21 00 00 01`)} {
		area := append(append([]byte{}, before...), offer...)
		o, offset, err := ParseOption(append(area, 1, 0))
		require.NoError(t, err)
		require.Equal(t, len(before), offset)
		require.Equal(t, RoleOffer, o.Role)
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
		_, _, err := ParseOption(golden.Unhex(t, text))
		require.ErrorIs(t, err, ErrNoOption, name)
	}
}

func TestOptionTruncated(t *testing.T) {
	b := golden.Vector(t, "option-offer")
	for i := range b {
		_, _, err := ParseOption(b[:i])
		require.ErrorIs(t, err, ErrNoOption)
	}
}

func TestOptionFlagsIgnored(t *testing.T) {
	o, _, err := ParseOption(golden.Unhex(t, `fe 0a 53 4d 47 57 11 80 be ef`))
	require.NoError(t, err)
	require.Equal(t, uint8(0x80), o.Flags)
}

func TestOptionAllocs(t *testing.T) {
	area := golden.Vector(t, "option-accept")
	buf := make([]byte, 0, OptionLen)
	require.Zero(t, testing.AllocsPerRun(100, func() {
		o, _, _ := ParseOption(area)
		buf = AppendOption(buf[:0], o)
	}))
}

func FuzzParseOption(f *testing.F) {
	f.Add(golden.Vector(f, "option-offer"))
	f.Add([]byte{2, 4, 5, 0xb4, 1, 3, 3, 7})
	f.Fuzz(func(t *testing.T, area []byte) {
		o, i, err := ParseOption(area)
		if err != nil {
			require.ErrorIs(t, err, ErrNoOption)
			return
		}
		require.Equal(t, area[i:i+OptionLen], AppendOption(nil, o))
	})
}

func TestRoleNames(t *testing.T) {
	for role, name := range map[Role]string{RoleOffer: "offer", RoleAccept: "accept", RoleConfirm: "confirm", 9: "unknown"} {
		require.Equal(t, name, role.String())
	}
}
