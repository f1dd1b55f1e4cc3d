package clc

import (
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/smcgw/smcgw/internal/golden"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestHeader(t *testing.T) {
	h, n, err := ParseHeader(golden.Vector(t, "proposal"))
	require.NoError(t, err)
	require.Equal(t, HeaderLen, n)
	require.Equal(t, Header{Type: TypeProposal, Version: 1, Len: 232}, h)
}

func TestHeaderTruncated(t *testing.T) {
	for _, s := range []string{"G", "SG", "SMx", "SMGX", "GET / HTTP/1.1", "\x00"} {
		_, _, err := ParseHeader([]byte(s))
		require.ErrorIs(t, err, ErrMalformed, s)
	}
	for _, s := range []string{"", "S", "SMG", "SMGW\x01\x01\x00"} {
		_, _, err := ParseHeader([]byte(s))
		require.ErrorIs(t, err, ErrShort, s)
	}
	for _, n := range []uint16{0, 7, MaxMessageLen + 1, 0xffff} {
		b := binary.BigEndian.AppendUint16([]byte("SMGW\x01\x01"), n)
		_, _, err := ParseHeader(b)
		require.ErrorIs(t, err, ErrMalformed, "length %d", n)
	}
}

func FuzzParseHeader(f *testing.F) {
	for _, name := range []string{"proposal", "accept", "confirm", "decline", "resolve"} {
		f.Add(golden.Vector(f, name))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		h, n, err := ParseHeader(b)
		if err != nil {
			require.Zero(t, n)
			return
		}
		again := AppendHeader(nil, h.Type, h.Version)
		binary.BigEndian.PutUint16(again[6:], uint16(h.Len))
		require.Equal(t, b[:n], again)
	})
}
