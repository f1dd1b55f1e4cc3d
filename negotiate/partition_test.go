package negotiate

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/negotiate/internal/clc"
)

// partitions are a PROPOSAL and an ACCEPT whose soft carrier has a partition key.
func partitions(t testing.TB) map[string][]byte {
	p := goldenProposal(t)
	p.Carriers[1].RoCE.PKey = 0x9234
	a := Accept{Version: 1, Carriers: p.Carriers[1:]}
	return map[string][]byte{"proposal": AppendProposal(nil, &p), "accept": encodeAccept(&a)}
}

// carriersOf are those of a message of [partitions].
func carriersOf(name string, b []byte) ([]CarrierOffer, error) {
	if name == "accept" {
		a, _, err := ParseAccept(b)
		return a.Carriers, err
	}
	p, _, err := parseProposal(b)
	return p.Carriers, err
}

func TestPartition(t *testing.T) {
	for name, b := range partitions(t) {
		require.Equal(t, []byte{0x00, 0x13, 0, 2, 0x92, 0x34}, b[len(b)-6:], "after its carrier, and not critical")
		cs, err := carriersOf(name, b)
		require.NoError(t, err)
		require.EqualValues(t, 0x9234, FindCarrier(cs, CarrierSoft).RoCE.PKey)
		requireTruncationFails(t, b, func(b []byte) error {
			_, err := carriersOf(name, b)
			return err
		})

		// A version that does not know it has the same carriers without it.
		b[len(b)-5] = 0x77
		cs, err = carriersOf(name, b)
		require.NoError(t, err)
		require.Zero(t, FindCarrier(cs, CarrierSoft).RoCE.PKey)
	}
}

func TestPartitionMalformed(t *testing.T) {
	for name, whole := range partitions(t) {
		bare := clc.EndMessage(whole[:len(whole)-6], 0)
		for _, v := range [][]byte{{}, {0x92}, {0x92, 0x34, 0}, {0, 0}, {0x80, 0}, {0x12, 0x34}, {0x7f, 0xff}, {0xff, 0xff}} {
			_, err := carriersOf(name, withTLV(bare, clc.TLVPartition, v))
			require.ErrorIs(t, err, ErrMalformed, "% x", v)
		}
		good := withTLV(bare, clc.TLVPartition, []byte{0x80, 1})
		_, err := carriersOf(name, good)
		require.NoError(t, err)
		_, err = carriersOf(name, withTLV(good, clc.TLVPartition, []byte{0x80, 1}))
		require.ErrorIs(t, err, ErrMalformed, "twice")
	}
	p := Proposal{MinVersion: 1, MaxVersion: 1}
	_, err := carriersOf("proposal", withTLV(AppendProposal(nil, &p), clc.TLVPartition, []byte{0x80, 1}))
	require.NoError(t, err, "of a carrier that is not known")
}
