package negotiate

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/negotiate/internal/clc"
)

func TestDeclineGolden(t *testing.T) {
	d := Decline{Version: 1, Reason: ReasonAppRefused}
	require.Equal(t, vector(t, "decline"), encodeDecline(d))
	got, n, err := ParseDecline(vector(t, "decline"))
	require.NoError(t, err)
	require.Len(t, vector(t, "decline"), n)
	require.Equal(t, d, got)
}

func TestDeclineUnknownReasonAndVersion(t *testing.T) {
	d := Decline{Version: 9, Reason: 222}
	got, _, err := ParseDecline(encodeDecline(d))
	require.NoError(t, err)
	require.Equal(t, d, got)
}

func TestDeclineMalformed(t *testing.T) {
	_, _, err := ParseDecline(encodeDecline(Decline{Version: 1}))
	require.ErrorIs(t, err, ErrMalformed)
	_, _, err = ParseDecline(clc.EndMessage(clc.AppendHeader(nil, TypeDecline, 1), 0))
	require.ErrorIs(t, err, ErrMalformed)
}

func FuzzParseDecline(f *testing.F) {
	f.Add(vector(f, "decline"))
	fuzzMessage(f, ParseDecline, encodeDecline)
}
