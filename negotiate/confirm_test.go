package negotiate

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/negotiate/internal/clc"
)

func TestConfirmGolden(t *testing.T) {
	c := Confirm{Version: 1, Carrier: CarrierSHM}
	require.Equal(t, vector(t, "confirm"), AppendConfirm(nil, c))
	got, n, err := parseConfirm(vector(t, "confirm"))
	require.NoError(t, err)
	require.Len(t, vector(t, "confirm"), n)
	require.Equal(t, c, got)
}

func TestConfirmMalformed(t *testing.T) {
	_, _, err := parseConfirm(AppendConfirm(nil, Confirm{Version: 1, Carrier: 99}))
	require.ErrorIs(t, err, ErrMalformed)
	_, _, err = parseConfirm(clc.EndMessage(clc.AppendHeader(nil, TypeConfirm, 1), 0))
	require.ErrorIs(t, err, ErrMalformed)
	_, _, err = parseConfirm(withTLV(clc.EndMessage(clc.AppendHeader(nil, TypeConfirm, 1), 0), clc.TLVChosen, []byte{1, 1}))
	require.ErrorIs(t, err, ErrMalformed)
}

func FuzzParseConfirm(f *testing.F) {
	f.Add(vector(f, "confirm"))
	f.Add(vector(f, "confirm-mac"))
	fuzzMessage(f, parseConfirm, func(c Confirm) []byte { return AppendConfirm(nil, c) })
}
