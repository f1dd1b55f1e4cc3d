package negotiate

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/internal/golden"
	"github.com/smcgw/smcgw/negotiate/internal/clc"
)

// infiniBandAccept is an ACCEPT of an InfiniBand carrier, as in the vector.
func infiniBandAccept(t testing.TB) Accept {
	conn := golden.Unhex(t, `01 02 01 80 00000000 0000000000004000 00002001 00000010 0000000000010000 00002002 00010000`)
	return Accept{
		Version: 1, GatewayID: [16]byte(seq(0xa0, 16)),
		Carriers: []CarrierOffer{{
			Kind: CarrierIB, Conn: ConnData(conn),
			IB: IBEndpoint{
				GID: [16]byte(golden.Unhex(t, `fe80 0000 0000 0000 0002 c903 0000 0001`)), LID: 3, PKey: 0x8005, MTU: 2048, SL: 3,
				QPN: 0x123, PSN: 0xabcdef,
			},
		}},
	}
}

func TestInfiniBandGolden(t *testing.T) {
	a := infiniBandAccept(t)
	b := vector(t, "accept-infiniband")
	require.Equal(t, b, encodeAccept(&a))
	got, n, err := ParseAccept(b)
	require.NoError(t, err)
	require.Equal(t, len(b), n)
	require.Equal(t, a, got)
	require.Equal(t, "rdma-ib", got.Carriers[0].Kind.String())
	requireTruncationFails(t, b, func(b []byte) error {
		_, _, err := ParseAccept(b)
		return err
	})
}

// infiniBandTLV is the carrier of the vector.
func infiniBandTLV(t testing.TB) []byte {
	a := infiniBandAccept(t)
	return appendCarrier(nil, &a.Carriers[0])[clc.TLVHeaderLen:]
}

func TestInfiniBandMalformed(t *testing.T) {
	const at = carrierFixedLen
	parse := func(v []byte) (cs []CarrierOffer, err error) {
		err = addCarrier(&cs, v)
		return cs, err
	}
	whole := infiniBandTLV(t)
	for n := range whole {
		_, err := parse(whole[:n])
		require.ErrorIs(t, err, ErrMalformed, "%d bytes", n)
	}
	for name, change := range map[string]func(v []byte){
		"no LID":              func(v []byte) { v[at+16], v[at+17] = 0, 0 },
		"multicast LID":       func(v []byte) { v[at+16] = 0xc0 },
		"permissive LID":      func(v []byte) { v[at+16], v[at+17] = 0xff, 0xff },
		"no partition":        func(v []byte) { v[at+18], v[at+19] = 0, 0 },
		"partition 0, member": func(v []byte) { v[at+18], v[at+19] = 0x80, 0 },
		"mtu":                 func(v []byte) { v[at+20] = 9 },
		"service level":       func(v []byte) { v[at+22] = 16 },
		"queue pair":          func(v []byte) { v[at+linkLayerAt+1] = 1 },
		"psn":                 func(v []byte) { v[at+28] = 1 },
	} {
		v := bytes.Clone(whole)
		change(v)
		_, err := parse(v)
		require.ErrorIs(t, err, ErrMalformed, name)
	}
	_, err := parse(append(bytes.Clone(whole), 0))
	require.ErrorIs(t, err, ErrMalformed, "longer")
	cs, err := parse(whole)
	require.NoError(t, err)
	require.ErrorIs(t, addCarrier(&cs, whole), ErrMalformed, "twice")

	// The limited member of a partition, and the default one, are as good.
	for _, pkey := range [][2]byte{{0x00, 0x05}, {0xff, 0xff}, {0x7f, 0xff}} {
		v := bytes.Clone(whole)
		v[at+18], v[at+19] = pkey[0], pkey[1]
		cs, err := parse(v)
		require.NoError(t, err)
		require.Len(t, cs, 1)
	}
	// What another link layer has to say is not for this version.
	other := append(bytes.Clone(whole), 1, 2, 3)
	other[at+23] = 2
	cs, err = parse(other)
	require.NoError(t, err)
	require.Empty(t, cs)
	cs, err = parse(other[:at+linkLayerAt+1])
	require.NoError(t, err, "shorter")
	require.Empty(t, cs)
}

// TestInfiniBandChosen: a CONFIRM may choose it.
func TestInfiniBandChosen(t *testing.T) {
	c, _, err := parseConfirm(AppendConfirm(nil, Confirm{Version: 1, Carrier: CarrierIB}))
	require.NoError(t, err)
	require.Equal(t, CarrierIB, c.Carrier)
	_, _, err = parseConfirm(AppendConfirm(nil, Confirm{Version: 1, Carrier: CarrierIB + 1}))
	require.ErrorIs(t, err, ErrMalformed)
}
