package negotiate

import (
	"bytes"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

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

func TestRest(t *testing.T) {
	at := func(s float64) time.Time {
		return time.Unix(1000, 0).Add(time.Duration(s * float64(time.Second)))
	}
	var r Rest
	require.True(t, r.Over(at(0)))
	for range 1000 { // all flows of a device at once
		r = r.Failed(at(0))
	}
	require.False(t, r.Resting(at(0)))
	require.False(t, r.Over(at(0)))
	r = r.Failed(at(10)).Failed(at(11))
	require.False(t, r.Resting(at(11)))
	r = r.Failed(at(20))
	require.True(t, r.Resting(at(20)))
	require.True(t, r.Resting(at(29)))
	require.Equal(t, r, r.Failed(at(25)), "late ones of before")
	require.False(t, r.Resting(at(30)))
	r = r.Failed(at(35))
	require.True(t, r.Resting(at(54)), "the second pause is longer")
	require.False(t, r.Resting(at(55)))
	require.False(t, r.Over(at(70)))
	require.True(t, r.Over(at(75)))
	r = r.Failed(at(76))
	require.False(t, r.Resting(at(76)), "it was good for as long as it rested")

	r = Rest{}.Failed(at(0)).Failed(at(59)).Failed(at(61))
	require.False(t, r.Resting(at(61)), "two within a minute")
}

// TestRestIsBounded: whatever fails when, a carrier rests for ten minutes at most, and only after three failures.
func TestRestIsBounded(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var r Rest
		now, counted := time.Unix(1000, 0), 0
		for range rapid.IntRange(1, 40).Draw(t, "failures") {
			now = now.Add(time.Duration(rapid.Int64Range(0, int64(20*time.Minute)).Draw(t, "later")))
			next := r.Failed(now)
			if next != r {
				counted++
			}
			r = next
			require.LessOrEqual(t, r.until.Sub(now), restMost)
			require.False(t, r.Resting(now) && counted < restAfter)
			require.False(t, r.Resting(now) && r.Over(now))
		}
		require.True(t, r.Over(now.Add(restWindow+2*restMost+time.Second)))
		require.False(t, r.Resting(now.Add(restMost)))
	})
}

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
