package negotiate

import (
	"bytes"
	"encoding/binary"
	"testing"
	"time"

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

// seq returns n bytes counting up from first.
func seq(first byte, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = first + byte(i)
	}
	return b
}

func goldenProposal(t testing.TB) Proposal {
	soft := golden.Unhex(t, `01 02 01 80 00000000 0000000000004000 00002001 00000010 0000000000010000 00002002 00010000`)
	shm := golden.Unhex(t, `01 02 01 80 00000000 00007f0000a03000 00001001 00000010 00007f0000b00000 00001002 00010000`)
	return Proposal{
		Nonce:        0xbeef,
		MinVersion:   1,
		MaxVersion:   1,
		GatewayID:    [16]byte(seq(0xa0, 16)),
		HostID:       [16]byte(seq(0xb0, 16)),
		DatagramPort: 4790,
		Software:     "0.1.0+hw",
		Budget:       204 * time.Millisecond,
		Carriers: []CarrierOffer{
			{
				Kind: CarrierSHM, Conn: ConnData(shm),
				SHM: SHMEndpoint{Name: "gw-a.s", Key: [16]byte(seq(0xc0, 16)), QPN: 17},
			},
			{
				Kind: CarrierSoft, Conn: ConnData(soft),
				RoCE: RoCEEndpoint{
					GID:     [16]byte(golden.Unhex(t, `00000000000000000000ffff0a000001`)),
					UDPPort: 4791, MTU: 1024, QPN: 0x123, PSN: 0xabcdef,
				},
			},
		},
	}
}

func TestProposalGolden(t *testing.T) {
	p := goldenProposal(t)
	b := vector(t, "proposal")
	require.Equal(t, b, AppendProposal(nil, &p))
	got, n, err := parseProposal(b)
	require.NoError(t, err)
	require.Equal(t, len(b), n)
	require.Equal(t, p, got)
}

func TestProposalSmallest(t *testing.T) {
	p := Proposal{MinVersion: 1, MaxVersion: 1}
	b := AppendProposal([]byte("before"), &p)
	got, n, err := parseProposal(b[len("before"):])
	require.NoError(t, err)
	require.Len(t, b, len("before")+n)
	require.Equal(t, p, got)
}

func TestProposalBudget(t *testing.T) {
	for in, want := range map[time.Duration]uint32{
		-1: 0, 0: 0, 1: 1, time.Millisecond: 1, time.Millisecond + 1: 2, time.Hour: 3600_000, 1 << 62: 1<<32 - 1,
	} {
		require.Equal(t, want, budgetMillis(in), "%d", in)
	}
}

// TestSoftware: a version is told by its first 16 visible characters, and nothing else is believed to be one.
func TestSoftware(t *testing.T) {
	for text, told := range map[string]string{"": "", "1.0": "1.0", "1.0 beta\n\x80": "1.0beta", "0.1.0+a-long-build-name": "0.1.0+a-long-bui", " ": ""} {
		p := goldenProposal(t)
		p.Software = text
		b := AppendProposal(nil, &p)
		got, _, err := parseProposal(b)
		require.NoError(t, err)
		require.Equal(t, told, got.Software)
	}
	p := goldenProposal(t)
	p.Software = "abc"
	for _, c := range []byte{0, ' ', 0x7f, 0x80, '\n'} {
		b := AppendProposal(nil, &p)
		b[bytes.Index(b, []byte("abc"))] = c
		_, _, err := parseProposal(b)
		require.ErrorIs(t, err, ErrMalformed, "%#x", c)
	}
	for _, v := range [][]byte{{}, []byte("seventeen letters")} {
		b := clc.AppendTLV(AppendProposal(nil, &Proposal{MinVersion: 1, MaxVersion: 1}), clc.TLVSoftware, v)
		binary.BigEndian.PutUint16(b[6:], uint16(len(b)))
		_, _, err := parseProposal(b)
		require.ErrorIs(t, err, ErrMalformed, "%q", v)
	}
}

func TestProposalMalformed(t *testing.T) {
	bad := map[string]func(p *Proposal){
		"versions the wrong way round": func(p *Proposal) { p.MinVersion = 2 },
		"name with a slash":            func(p *Proposal) { p.Carriers[0].SHM.Name = "../x" },
		"hidden name":                  func(p *Proposal) { p.Carriers[0].SHM.Name = "." },
		"no name":                      func(p *Proposal) { p.Carriers[0].SHM.Name = "" },
		"name with NUL":                func(p *Proposal) { p.Carriers[0].SHM.Name = "a\x00b" },
		"long name":                    func(p *Proposal) { p.Carriers[0].SHM.Name = string(make([]byte, MaxRendezvousName+1)) },
		"25-bit queue pair":            func(p *Proposal) { p.Carriers[1].RoCE.QPN = 1 << 24 },
		"25-bit psn":                   func(p *Proposal) { p.Carriers[1].RoCE.PSN = 1 << 24 },
		"port zero":                    func(p *Proposal) { p.Carriers[1].RoCE.UDPPort = 0 },
		"mtu 1500":                     func(p *Proposal) { p.Carriers[1].RoCE.MTU = 1500 },
		"mtu 128":                      func(p *Proposal) { p.Carriers[1].RoCE.MTU = 128 },
		"two of a kind":                func(p *Proposal) { p.Carriers = append(p.Carriers, p.Carriers[0]) },
		"relay as offer":               func(p *Proposal) { p.Carriers[1].Kind = CarrierRelay },
	}
	for name, spoil := range bad {
		p := goldenProposal(t)
		spoil(&p)
		_, _, err := parseProposal(AppendProposal(nil, &p))
		require.ErrorIs(t, err, ErrMalformed, name)
	}
}

func TestProposalUnknownCarrierSkipped(t *testing.T) {
	p := goldenProposal(t)
	future := withTLV(AppendProposal(nil, &p), clc.TLVCarrier, append([]byte{77, 0}, make([]byte, connDataLen+3)...))
	got, _, err := parseProposal(future)
	require.NoError(t, err)
	require.Equal(t, p, got)
}

func TestProposalNonceComesFirst(t *testing.T) {
	b := vector(t, "proposal")
	swapped := bytes.Clone(b)
	copy(swapped[8:], b[14:20])
	copy(swapped[14:], b[8:14])
	_, _, err := parseProposal(swapped)
	require.ErrorIs(t, err, ErrMalformed)
}

func FuzzParseProposal(f *testing.F) {
	f.Add(vector(f, "proposal"))
	f.Add(partitions(f)["proposal"])
	fuzzMessage(f, parseProposal, func(p Proposal) []byte { return AppendProposal(nil, &p) })
}

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

func TestAskGolden(t *testing.T) {
	require.Equal(t, vector(t, "ask"), appendAsk(nil, Ask{Version: 1}))
	got, n, err := parseAsk(vector(t, "ask"))
	require.NoError(t, err)
	require.Len(t, vector(t, "ask"), n)
	require.Equal(t, Ask{Version: 1}, got)
}

func FuzzParseAsk(f *testing.F) {
	f.Add(vector(f, "ask"))
	f.Add(vector(f, "decline-mac"))
	fuzzMessage(f, parseAsk, func(a Ask) []byte { return appendAsk(nil, a)[:HeaderLen] }) // nothing follows
}
