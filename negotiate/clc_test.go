package negotiate

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestHeader(t *testing.T) {
	h, n, err := ParseHeader(vector(t, "proposal"))
	require.NoError(t, err)
	require.Equal(t, HeaderLen, n)
	require.Equal(t, Header{Type: TypeProposal, Version: 1, Len: 220}, h)
}

func TestHeaderRefusesEarly(t *testing.T) {
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

// parsers are the parsers of whole messages, by golden vector.
var parsers = map[string]func([]byte) (int, error){
	"proposal": func(b []byte) (int, error) { _, n, err := ParseProposal(b); return n, err },
	"accept":   func(b []byte) (int, error) { _, n, err := ParseAccept(b); return n, err },
	"confirm":  func(b []byte) (int, error) { _, n, err := ParseConfirm(b); return n, err },
	"decline":  func(b []byte) (int, error) { _, n, err := ParseDecline(b); return n, err },
}

func TestMessagesTruncated(t *testing.T) {
	for name, parse := range parsers {
		requireTruncationFails(t, vector(t, name), func(b []byte) error {
			_, err := parse(b)
			return err
		})
	}
}

// A message whose length says that it ends earlier is malformed wherever a TLV is cut, or lacks a mandatory TLV.
func TestMessagesCut(t *testing.T) {
	for name, parse := range parsers {
		whole := vector(t, name)
		for n := HeaderLen; n < len(whole); n++ {
			b := bytes.Clone(whole)
			binary.BigEndian.PutUint16(b[6:], uint16(n))
			if got, err := parse(b); err == nil {
				require.Equal(t, n, got)
				require.NotEqual(t, "confirm", name)
				require.NotEqual(t, "decline", name)
			} else {
				require.ErrorIs(t, err, ErrMalformed, "%s cut to %d", name, n)
			}
		}
	}
}

// withTLV returns the message with one more TLV at its end.
func withTLV(msg []byte, typ uint16, v []byte) []byte {
	return endMessage(appendTLV(bytes.Clone(msg), typ, v), 0)
}

func TestMessagesUnknownTLV(t *testing.T) {
	for name, parse := range parsers {
		b := withTLV(vector(t, name), 0x0077, []byte("future"))
		n, err := parse(b)
		require.NoError(t, err, name)
		require.Equal(t, len(b), n)

		_, err = parse(withTLV(vector(t, name), 0x8077, nil))
		var critical *CriticalTLVError
		require.ErrorAs(t, err, &critical)
		require.Equal(t, uint16(0x8077), critical.Type)
		require.Equal(t, ReasonVersion, ReasonOf(err))
	}
}

func TestMessagesWrongType(t *testing.T) {
	for name, parse := range parsers {
		for other := range parsers {
			if _, err := parse(vector(t, other)); other != name {
				require.ErrorIs(t, err, ErrMalformed, "%s as %s", other, name)
			}
		}
	}
}

func TestMessagesRepeatedTLV(t *testing.T) {
	for name, tlv := range map[string]struct {
		typ uint16
		n   int
	}{"proposal": {tlvVersions, 2}, "accept": {tlvGatewayID, 16}, "confirm": {tlvChosen, 1}, "decline": {tlvReason, 1}} {
		_, err := parsers[name](withTLV(vector(t, name), tlv.typ, make([]byte, tlv.n)))
		require.ErrorIs(t, err, ErrMalformed, name)
	}
}

func TestMessagesLeaveWhatFollows(t *testing.T) {
	for name, parse := range parsers {
		b := vector(t, name)
		n, err := parse(append(bytes.Clone(b), "SMGWrest"...))
		require.NoError(t, err)
		require.Equal(t, len(b), n)
	}
}

func FuzzParseHeader(f *testing.F) {
	for name := range parsers {
		f.Add(vector(f, name))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		h, n, err := ParseHeader(b)
		if err != nil {
			require.Zero(t, n)
			return
		}
		again := appendHeader(nil, h.Type, h.Version)
		binary.BigEndian.PutUint16(again[6:], uint16(h.Len))
		require.Equal(t, b[:n], again)
	})
}
