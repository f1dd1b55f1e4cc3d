package negotiate

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/internal/golden"
	"github.com/smcgw/smcgw/negotiate/internal/clc"
)

func goldenAccept(t testing.TB) Accept {
	conn := golden.Unhex(t, `01 02 00 80 00000000 00007f0000c03000 00003001 00000010 00007f0000d00000 00003002 00008000`)
	return Accept{
		Version:   1,
		GatewayID: [16]byte(seq(0xd0, 16)),
		Software:  "0.1.0",
		Carriers: []CarrierOffer{{
			Kind: CarrierSHM, Conn: ConnData(conn),
			SHM: SHMEndpoint{Name: "gw-b.s", Key: [16]byte(seq(0xe0, 16)), QPN: 18},
		}},
	}
}

func TestAcceptGolden(t *testing.T) {
	a := goldenAccept(t)
	b := vector(t, "accept")
	require.Equal(t, b, encodeAccept(&a))
	got, n, err := ParseAccept(b)
	require.NoError(t, err)
	require.Equal(t, len(b), n)
	require.Equal(t, a, got)
}

func TestAcceptWithEverything(t *testing.T) {
	p := goldenProposal(t)
	a := Accept{Version: 1, GatewayID: p.GatewayID, HostID: p.HostID, DatagramPort: 1, Software: "v2", Carriers: p.Carriers}
	b := encodeAccept(&a)
	got, _, err := ParseAccept(b)
	require.NoError(t, err)
	require.Equal(t, a, got)
}

func TestAcceptNeedsCarrierAndGateway(t *testing.T) {
	a := goldenAccept(t)
	a.Carriers = nil
	_, _, err := ParseAccept(encodeAccept(&a))
	require.ErrorIs(t, err, ErrMalformed)
	_, _, err = ParseAccept(clc.EndMessage(clc.AppendHeader(nil, TypeAccept, 1), 0))
	require.ErrorIs(t, err, ErrMalformed)
}

func FuzzParseAccept(f *testing.F) {
	f.Add(vector(f, "accept"))
	f.Add(partitions(f)["accept"])
	fuzzMessage(f, ParseAccept, func(a Accept) []byte { return encodeAccept(&a) })
}
