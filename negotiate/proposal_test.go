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
