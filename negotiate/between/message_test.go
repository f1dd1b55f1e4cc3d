package between

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/smcgw/smcgw/internal/golden"
	"github.com/smcgw/smcgw/negotiate"
	"github.com/smcgw/smcgw/negotiate/internal/clc"
)

func seq(first byte) (id [16]byte) {
	for i := range id {
		id[i] = first + byte(i)
	}
	return id
}

// soft is the carrier of a host in the vectors.
func soft(host byte, qpn, psn uint32, key uint16) negotiate.CarrierOffer {
	o := negotiate.CarrierOffer{Kind: negotiate.CarrierSoft, RoCE: negotiate.RoCEEndpoint{
		GID: netip.AddrFrom4([4]byte{10, 0, 0, host}).As16(), UDPPort: 4791, MTU: 1024, QPN: qpn, PSN: psn, PKey: key,
	}}
	for i, word := range []uint32{0x01020180, 0, 0, 0x4000, 0x2001, 16, 0, 0x10000, 0x2002, 1 << 20} {
		binary.BigEndian.PutUint32(o.Conn[4*i:], word)
	}
	return o
}

// goldens are the messages of the vectors.
var goldens = map[string]message{
	"hello": {kind: hello, hello: Hello{MinVersion: 1, MaxVersion: 1, GatewayID: seq(0xa0), HostID: seq(0xb0), Random: seq(0xc0)}},
	"offer": {kind: offer, number: 7, offer: Offer{
		Name: Name{ClientISN: 0x11223344, ServerISN: 0x55667788, ClientPort: 40000, ServerPort: 7000}, Order: 20,
		Nonces: [2][16]byte{seq(0xd0), seq(0xe0)}, Carriers: []negotiate.CarrierOffer{soft(1, 0x123, 0xabcdef, 0x9abc)},
	}},
	"answer":   {kind: answer, number: 7, offer: Offer{Order: 18, Carriers: []negotiate.CarrierOffer{soft(2, 0x456, 0x123456, 0x9def)}}},
	"confirm":  {kind: confirm, number: 7, chosen: negotiate.CarrierSoft},
	"decline":  {kind: decline, number: 7, reason: negotiate.ReasonNoPeer},
	"attached": {kind: attached, number: 7},
	"recall":   {kind: recall, number: 7},
	"where":    {kind: where, number: 7},
	"opened":   {kind: opened, number: 7, place: Place{Sent: 1024, Opened: true, At: 1024}},
	"ended":    {kind: ended, number: 7, written: 65536, exited: true, read: 131073},
	"ping":     {kind: ping, number: 3},
	"pong":     {kind: pong, number: 3},
}

func vector(t testing.TB, name string) []byte { return golden.Vector(t, "between-"+name) }

func TestMessageGolden(t *testing.T) {
	require.Len(t, golden.Names(t, "between-"), len(goldens)+1, "and one with a MAC")
	for name, want := range goldens {
		want.version = 1
		b := vector(t, name)
		require.Equal(t, b, want.append([]byte("xx"))[2:], name)
		got, n, err := parse(append(bytes.Clone(b), 'x'))
		require.NoError(t, err, name)
		require.Equal(t, len(b), n)
		require.Equal(t, want, got)
	}
}

// TestMessageMAC: with a MAC the message is the same, and the MAC is one over the chain.
func TestMessageMAC(t *testing.T) {
	b := vector(t, "ping-mac")
	got, _, err := parse(b)
	require.NoError(t, err)
	require.Equal(t, message{kind: ping, version: 1, number: 3}, got)
	c := Control{cfg: Config{Opener: true, Local: netip.MustParseAddrPort("10.0.0.1:40000"), Remote: netip.MustParseAddrPort("10.0.0.2:4790")}}
	var prev negotiate.MAC
	for i := range prev {
		prev[i] = byte(i)
	}
	sealed, _ := negotiate.Seal(got.append(nil), 0, []byte("smcgw test key"), c.chain(true, prev))
	require.Equal(t, b, sealed)
}

func TestMessageTruncated(t *testing.T) {
	for name := range goldens {
		b := vector(t, name)
		for n := range b {
			_, _, err := parse(b[:n])
			require.ErrorIs(t, err, clc.ErrShort, "%s of %d bytes", name, n)
		}
		for n := clc.HeaderLen; n < len(b); n++ { // the header says that it ends here
			cut := bytes.Clone(b[:n])
			binary.BigEndian.PutUint16(cut[6:], uint16(n))
			if _, _, err := parse(cut); err != nil {
				require.ErrorIs(t, err, clc.ErrMalformed)
				require.NotErrorIs(t, err, clc.ErrShort)
				_, ok := errors.AsType[*FieldError](err)
				require.True(t, ok, "%s of %d bytes: %v", name, n, err)
				continue
			}
			switch name {
			case "offer", "answer": // the partition and the carriers of an OFFER may miss
			case "opened", "ended":
			default:
				t.Errorf("%s of %d bytes is one", name, n)
			}
		}
	}
}

// TestMessageFields: what is wrong is named.
func TestMessageFields(t *testing.T) {
	shorter := func(name string, at, n int) []byte { // without n bytes
		b := vector(t, name)
		return clc.EndMessage(append(b[:at:at], b[at+n:]...), 0)
	}
	changed := func(name string, at int, to ...byte) []byte {
		b := vector(t, name)
		copy(b[at:], to)
		return b
	}
	added := func(name string, typ uint16, value ...byte) []byte {
		return clc.EndMessage(clc.AppendTLV(vector(t, name), typ, value), 0)
	}
	for _, c := range []struct {
		b     []byte
		field string
	}{
		{changed("ping", 4, uint8(kinds)), "type"},
		{changed("ping", 4, 15), "type"},
		{shorter("hello", 8, 6), "versions"},
		{changed("hello", 12, 2, 1), "versions"},
		{shorter("hello", 14, 20), "gateway id"},
		{changed("hello", 37, 15), "host id"},
		{shorter("hello", 54, 20), "random"},
		{shorter("offer", 8, 12), "number"},
		{changed("offer", 12, make([]byte, 8)...), "number"},
		{changed("offer", 12, 0x80), "number"},
		{changed("offer", 23, 11), "name"},
		{changed("offer", 32, 0, 0), "name"},
		{changed("offer", 34, 0, 0), "name"},
		{changed("offer", 40, MinOrder-1), "order"},
		{changed("offer", 40, MaxOrder+1), "order"},
		{shorter("offer", 36, 5), "order"},
		{shorter("offer", 41, 36), "nonces"},
		{changed("offer", 44, 31), "nonces"},
		{changed("offer", 81, 0), "carrier"},
		{changed("offer", 155, 0, 0), "partition"},
		{shorter("answer", 20, 5), "order"},
		{changed("answer", 29, 77), "carrier"}, // none that is known
		{added("confirm", clc.TLVChosen, 2), "chosen"},
		{shorter("confirm", 20, 5), "chosen"},
		{changed("decline", 24, 0), "reason"},
		{changed("opened", 24, 0xff), "sent"},
		{changed("opened", 36, 0xff), "open"},
		{changed("ended", 24, 0xff), "written"},
		{changed("ended", 36, 0xff), "read"},
		{added("ended", clc.TLVWritten, 0), "written"},
		{added("ended", 0x8077), "message"},
		{append(vector(t, "ping-mac")[:56:56], vector(t, "ping")[8:]...), "number"},
	} {
		b := clc.EndMessage(c.b, 0)
		_, _, err := parse(b)
		field, ok := errors.AsType[*FieldError](err)
		require.True(t, ok, "%s: %v", c.field, err)
		require.Equal(t, c.field, field.Field, err)
		want := negotiate.ReasonProtocolError
		if c.field == "message" {
			want = negotiate.ReasonVersion
		}
		require.Equal(t, want, negotiate.ReasonOf(err))
	}
	_, _, err := parse(added("ended", 0x0077, 1, 2))
	require.NoError(t, err, "an unknown field that is not critical")
	_, _, err = parse([]byte("SMTP"))
	require.ErrorIs(t, err, clc.ErrMalformed)
}

// TestMessageOffered: an OFFER of carriers that are not known is one, to be declined.
func TestMessageOffered(t *testing.T) {
	b := vector(t, "offer")
	b[81] = 77
	m, _, err := parse(b)
	require.NoError(t, err)
	require.Empty(t, m.offer.Carriers)
}

// TestShapes: every field of a message has a name, and each message a shape.
func TestShapes(t *testing.T) {
	var named clc.TLVSet
	for _, f := range fields {
		require.NotZero(t, clc.Set(f.tlv), f.name)
		named |= clc.Set(f.tlv)
	}
	for k := hello; k < kinds; k++ {
		require.NotEmpty(t, shapes[k].name)
		require.Zero(t, (shapes[k].must|shapes[k].may)&^named)
		require.Contains(t, goldens, shapes[k].name)
	}
}

func FuzzParse(f *testing.F) {
	for name := range goldens {
		f.Add(vector(f, name))
	}
	f.Add(vector(f, "ping-mac"))
	f.Fuzz(func(t *testing.T, b []byte) {
		m, n, err := parse(b)
		if err != nil {
			require.Zero(t, n, err)
			require.NotEmpty(t, fmt.Sprint(err))
			return
		}
		again := m.append(nil)
		require.LessOrEqual(t, len(again), n, "what is not known is left out")
		got, _, err := parse(again)
		require.NoError(t, err)
		require.Equal(t, m, got)
	})
}

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
