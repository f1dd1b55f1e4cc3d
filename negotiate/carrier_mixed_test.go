package negotiate

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// mixedProposal offers a soft queue pair that an adapter may answer, and one of an
// adapter that software may answer.
func mixedProposal(t testing.TB) Proposal {
	p := goldenProposal(t)
	soft := p.Carriers[1]
	soft.Mixed, soft.RoCE.PKey = true, 0x9234
	hw := p.Carriers[1]
	hw.Kind, hw.Mixed = CarrierHW, true
	p.Carriers = []CarrierOffer{hw, soft}
	return p
}

func TestMixed(t *testing.T) {
	p := mixedProposal(t)
	b := AppendProposal(nil, &p)
	got, _, err := parseProposal(b)
	require.NoError(t, err)
	require.Equal(t, p.Carriers, got.Carriers)

	plain := p
	plain.Carriers = []CarrierOffer{p.Carriers[0], p.Carriers[1]}
	for i := range plain.Carriers {
		plain.Carriers[i].Mixed = false
	}
	without := AppendProposal(nil, &plain)
	var differ []byte
	for i := range b {
		if b[i] != without[i] {
			differ = append(differ, b[i]-without[i])
		}
	}
	require.Equal(t, []byte{1, 1}, differ, "bit 0 of the flags of each, that a gateway before it ignores")
}

// TestMixedFlags: others mean nothing, and shared memory has none.
func TestMixedFlags(t *testing.T) {
	p := goldenProposal(t)
	for i := range p.Carriers {
		p.Carriers[i].Mixed = true
	}
	b := AppendProposal(nil, &p)
	got, _, err := parseProposal(b)
	require.NoError(t, err)
	require.Equal(t, []bool{false, true}, []bool{got.Carriers[0].Mixed, got.Carriers[1].Mixed})

	var cs []CarrierOffer
	v := append([]byte{byte(CarrierSHM), 0xff}, make([]byte, connDataLen+shmFixedLen)...)
	require.NoError(t, addCarrier(&cs, append(v, "name"...)))
	require.False(t, cs[0].Mixed)
	v = appendCarrier(nil, &p.Carriers[1])[4:]
	v[1] = 0xfe
	require.NoError(t, addCarrier(&cs, v))
	require.False(t, cs[1].Mixed)
}

// TestMixedPort: an adapter has one port.
func TestMixedPort(t *testing.T) {
	for _, kind := range []CarrierKind{CarrierSoft, CarrierHW} {
		p := goldenProposal(t)
		p.Carriers = p.Carriers[1:]
		p.Carriers[0].Kind, p.Carriers[0].Mixed, p.Carriers[0].RoCE.UDPPort = kind, true, 4793
		_, _, err := parseProposal(AppendProposal(nil, &p))
		require.ErrorIs(t, err, ErrMalformed)
		p.Carriers[0].Mixed = false
		_, _, err = parseProposal(AppendProposal(nil, &p))
		require.NoError(t, err)
	}
}

// TestMixedAnswers: only an offer that allows it is answered by the other kind's
// device, by its own kind any.
func TestMixedAnswers(t *testing.T) {
	both := mixedProposal(t).Carriers
	for i := range both {
		both[i].RoCE.PKey = 0
	}
	for _, c := range []struct {
		offer, answer bool
		pkey          uint16
		ok            bool
	}{
		{false, false, 0, true},
		{true, false, 0, true},
		{true, true, 0, true},
		{false, true, 0, false},
		{true, false, 0x9001, true},
		{true, true, 0x9001, false},
		{false, true, 0x9001, false},
	} {
		offers := []CarrierOffer{both[1]}
		offers[0].Mixed = c.offer
		answer := both[1]
		answer.Mixed, answer.RoCE.PKey = c.answer, c.pkey
		require.Len(t, offered([]CarrierOffer{answer}, offers), map[bool]int{true: 1}[c.ok], "server: %+v", c)

		p := goldenProposal(t)
		p.Carriers = offers
		client := NewClient(ClientConfig{}, p)
		client.Start(t0, testRTT)
		todo := client.Receive(t0, encodeAccept(&Accept{Version: Version, Carriers: []CarrierOffer{answer}}))
		_, proves := todo[len(todo)-1].(Prove)
		require.Equal(t, c.ok, proves, "client: %+v", c)
		if !c.ok {
			v, _ := client.Verdict()
			require.Equal(t, ReasonProtocolError, v.Reason)
		}
	}
	require.Empty(t, offered(both[:1], both[1:]), "the answer has the kind of the offer")
}
