package negotiate

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/internal/golden"

	"github.com/smcgw/smcgw/negotiate/internal/clc"
)

// parsers are the parsers of whole messages, by golden vector.
var parsers = map[string]func([]byte) (int, error){
	"proposal": func(b []byte) (int, error) { _, n, err := parseProposal(b); return n, err },
	"accept":   func(b []byte) (int, error) { _, n, err := ParseAccept(b); return n, err },
	"confirm":  func(b []byte) (int, error) { _, n, err := parseConfirm(b); return n, err },
	"decline":  func(b []byte) (int, error) { _, n, err := ParseDecline(b); return n, err },
	"ask":      func(b []byte) (int, error) { _, n, err := parseAsk(b); return n, err },
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
	return clc.EndMessage(clc.AppendTLV(bytes.Clone(msg), typ, v), 0)
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
		for _, other := range []string{"resolve", "resolved", "refused"} {
			_, err := parse(golden.Vector(t, other))
			require.ErrorIs(t, err, ErrMalformed, "%s as %s", other, name)
		}
	}
}

func TestMessagesRepeatedTLV(t *testing.T) {
	for name, tlv := range map[string]struct {
		typ uint16
		n   int
	}{"proposal": {clc.TLVVersions, 2}, "accept": {clc.TLVGatewayID, 16}, "confirm": {clc.TLVChosen, 1}, "decline": {clc.TLVReason, 1}} {
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
