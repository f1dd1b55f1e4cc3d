package resolve

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/smcgw/smcgw/internal/golden"
	"github.com/smcgw/smcgw/negotiate"
	"github.com/smcgw/smcgw/negotiate/internal/clc"
)

func goldenResolve() Resolve {
	return Resolve{
		Nonce: QueryNonce(seq(0xf0, 16)), MinVersion: 1, MaxVersion: 1,
		GatewayID: [16]byte(seq(0xa0, 16)), HostID: [16]byte(seq(0xb0, 16)), Target: netip.MustParseAddrPort("10.0.0.2:4790"),
		Offers: []UDOffer{
			{Kind: negotiate.CarrierSHM, MTU: 4096, QPN: 17, QKey: 0x5a5b5c5d, Name: "gw-a.s", Key: [16]byte(seq(0xc0, 16))},
			{Kind: negotiate.CarrierSoft, MTU: 1024, QPN: 0x123, QKey: 0x6a6b6c6d, GID: netip.MustParseAddr("::ffff:10.0.0.1").As16(), UDPPort: 4791},
		},
	}
}

func goldenResolved() Resolved {
	return Resolved{
		Version: 1, Nonce: QueryNonce(seq(0xf0, 16)), GatewayID: [16]byte(seq(0xd0, 16)),
		Observed: netip.MustParseAddrPort("10.0.0.1:4790"), TTL: 10 * time.Minute,
		Offers: []UDOffer{{
			Kind: negotiate.CarrierSoft, MTU: 1024, QPN: 0x456, QKey: 0x7a7b7c7d, GID: netip.MustParseAddr("::ffff:10.0.0.2").As16(), UDPPort: 4791,
		}},
	}
}

func goldenRefused() Refused {
	return Refused{Nonce: QueryNonce(seq(0xf0, 16)), Reason: negotiate.ReasonPolicy, TTL: time.Minute}
}

// resolutions are the parsers of whole datagrams, by golden vector.
var resolutions = map[string]func([]byte) error{
	"resolve":  func(b []byte) error { _, err := parseResolve(b); return err },
	"resolved": func(b []byte) error { _, err := ParseResolved(b); return err },
	"refused":  func(b []byte) error { _, err := ParseRefused(b); return err },
}

func TestResolutionGolden(t *testing.T) {
	q := goldenResolve()
	require.Equal(t, golden.Vector(t, "resolve"), AppendResolve(nil, &q))
	gotQuery, err := parseResolve(golden.Vector(t, "resolve"))
	require.NoError(t, err)
	require.Equal(t, q, gotQuery)

	a := goldenResolved()
	require.Equal(t, golden.Vector(t, "resolved"), appendResolved([]byte("xx"), &a)[2:])
	gotAnswer, err := ParseResolved(golden.Vector(t, "resolved"))
	require.NoError(t, err)
	require.Equal(t, a, gotAnswer)

	r := goldenRefused()
	require.Equal(t, golden.Vector(t, "refused"), encodeRefused(r))
	gotRefusal, err := ParseRefused(golden.Vector(t, "refused"))
	require.NoError(t, err)
	require.Equal(t, r, gotRefusal)
}

func TestResolutionTruncated(t *testing.T) {
	for name, parse := range resolutions {
		requireTruncationFails(t, golden.Vector(t, name), parse)
	}
}

// TestResolutionCut lets the header's length and the datagram end early, together and apart.
func TestResolutionCut(t *testing.T) {
	for name, parse := range resolutions {
		whole := golden.Vector(t, name)
		for n := clc.HeaderLen; n < len(whole); n++ {
			b := bytes.Clone(whole)
			binary.BigEndian.PutUint16(b[6:], uint16(n))
			require.ErrorIs(t, parse(b), clc.ErrMalformed, "%s with bytes after it", name)
			if err := parse(b[:n]); err != nil {
				require.ErrorIs(t, err, clc.ErrMalformed, "%s of %d bytes", name, n)
			} else { // everything that must be there comes first
				require.Equal(t, "refused", name)
				require.Equal(t, len(whole)-clc.TLVHeaderLen-4, n)
			}
		}
	}
}

func TestResolutionUnknownTLV(t *testing.T) {
	for name, parse := range resolutions {
		require.NoError(t, parse(withTLV(golden.Vector(t, name), 0x0077, []byte("future"))), name)
		var critical *clc.CriticalTLVError
		require.ErrorAs(t, parse(withTLV(golden.Vector(t, name), 0x8077, nil)), &critical)
		require.Equal(t, uint16(0x8077), critical.Type)
	}
}

func TestResolutionWrongType(t *testing.T) {
	for name, parse := range resolutions {
		for other := range resolutions {
			if other != name {
				require.ErrorIs(t, parse(golden.Vector(t, other)), clc.ErrMalformed, "%s as %s", other, name)
			}
		}
		for _, other := range []string{"proposal", "accept", "confirm", "decline"} {
			require.ErrorIs(t, parse(golden.Vector(t, other)), clc.ErrMalformed, "%s as %s", other, name)
		}
	}
}

func TestResolutionRepeatedTLV(t *testing.T) {
	for name, parse := range resolutions {
		require.ErrorIs(t, parse(withTLV(golden.Vector(t, name), clc.TLVQueryNonce, make([]byte, 16))), clc.ErrMalformed, name)
	}
}

func TestResolutionNonceComesFirst(t *testing.T) {
	for name, parse := range resolutions {
		b := golden.Vector(t, name)
		rest := append(bytes.Clone(b[clc.HeaderLen+20:]), b[clc.HeaderLen:clc.HeaderLen+20]...)
		require.ErrorIs(t, parse(append(bytes.Clone(b[:clc.HeaderLen]), rest...)), clc.ErrMalformed, name)
		b[clc.HeaderLen+3]++ // 17 bytes long
		require.ErrorIs(t, parse(b), clc.ErrMalformed, name)
	}
}

func TestResolveMalformed(t *testing.T) {
	bad := map[string]func(r *Resolve){
		"versions the wrong way round": func(r *Resolve) { r.MinVersion = 2 },
		"name with a slash":            func(r *Resolve) { r.Offers[0].Name = "../x" },
		"hidden name":                  func(r *Resolve) { r.Offers[0].Name = "." },
		"no name":                      func(r *Resolve) { r.Offers[0].Name = "" },
		"long name":                    func(r *Resolve) { r.Offers[0].Name = strings.Repeat("x", clc.MaxRendezvousName+1) },
		"25-bit queue pair":            func(r *Resolve) { r.Offers[1].QPN = 1 << 24 },
		"port zero":                    func(r *Resolve) { r.Offers[1].UDPPort = 0 },
		"mtu 1500":                     func(r *Resolve) { r.Offers[1].MTU = 1500 },
		"shm with mtu 128":             func(r *Resolve) { r.Offers[0].MTU = 128 },
		"two of a kind":                func(r *Resolve) { r.Offers = append(r.Offers, r.Offers[0]) },
		"relay as offer":               func(r *Resolve) { r.Offers[1].Kind = negotiate.CarrierRelay },
	}
	for name, spoil := range bad {
		r := goldenResolve()
		spoil(&r)
		_, err := parseResolve(AppendResolve(nil, &r))
		require.ErrorIs(t, err, clc.ErrMalformed, name)
	}
	r := goldenResolve()
	_, err := parseResolve(withTLV(AppendResolve(nil, &r), clc.TLVUDOffer, append([]byte{77, 0}, make([]byte, 30)...)))
	require.NoError(t, err, "an offer of an unknown kind")
	for n, ok := range map[int]bool{minQueryLen: true, minQueryLen - 1: false, MaxQueryLen: true, MaxQueryLen + 1: false} {
		_, err = parseResolve(resized(t, n))
		require.Equal(t, ok, err == nil, "%d bytes: %v", n, err)
		_, nonce := QueryNonceOf(resized(t, n))
		require.Equal(t, ok, nonce, n)
	}
}

// resized is the golden RESOLVE with another padding.
func resized(t *testing.T, n int) []byte {
	b := golden.Vector(t, "resolve")[:minQueryLen-340]
	binary.BigEndian.PutUint16(b[len(b)-2:], uint16(n-len(b)))
	return clc.EndMessage(append(b, make([]byte, n-len(b))...), 0)
}

func TestResolvedMalformed(t *testing.T) {
	a := goldenResolved()
	a.Offers = nil
	_, err := ParseResolved(appendResolved(nil, &a))
	require.ErrorIs(t, err, clc.ErrMalformed, "no offer")
	r := goldenRefused()
	r.Reason = negotiate.ReasonNone
	_, err = ParseRefused(encodeRefused(r))
	require.ErrorIs(t, err, clc.ErrMalformed, "no reason")
}

func TestResolutionTTL(t *testing.T) {
	for in, want := range map[time.Duration]time.Duration{
		-1: 0, 0: 0, time.Second - 1: 0, 1500 * time.Millisecond: time.Second, maxAnswerTTL: maxAnswerTTL, 1 << 62: maxAnswerTTL,
	} {
		a := goldenResolved()
		a.TTL = in
		got, err := ParseResolved(appendResolved(nil, &a))
		require.NoError(t, err)
		require.Equal(t, want, got.TTL)
	}
	b := golden.Vector(t, "resolved")
	i := bytes.Index(b, []byte{0x80, 0x0f})
	binary.BigEndian.PutUint32(b[i+4:], 1<<32-1)
	got, err := ParseResolved(b)
	require.NoError(t, err)
	require.Equal(t, maxAnswerTTL, got.TTL)
}

func TestResolutionMAC(t *testing.T) {
	ends := negotiate.Binding{Client: portA, Server: portB}
	asker, answerer := negotiate.Chain{Binding: ends, From: negotiate.FromClient}, negotiate.Chain{Binding: ends, From: negotiate.FromServer}
	q, asked := negotiate.Seal(golden.Vector(t, "resolve"), 0, testKey, asker)
	_, err := parseResolve(q)
	require.NoError(t, err)
	_, err = negotiate.Verify(q, testKey, answerer)
	require.ErrorIs(t, err, negotiate.ErrAuth, "mirrored")
	answerer.Prev = asked
	a, _ := negotiate.Seal(golden.Vector(t, "resolved"), 0, testKey, answerer)
	_, err = ParseResolved(a)
	require.NoError(t, err)
	_, err = negotiate.Verify(a, testKey, answerer)
	require.NoError(t, err)
	answerer.Prev = negotiate.MAC{}
	_, err = negotiate.Verify(a, testKey, answerer)
	require.ErrorIs(t, err, negotiate.ErrAuth, "the answer to another query")
}

func TestRefusedCookieGolden(t *testing.T) {
	want := Refused{Nonce: QueryNonce(seq(0xf0, 16)), Reason: negotiate.ReasonAuthFailed, Cookie: Cookie(seq(0x30, 16))}
	b, _ := negotiate.Seal(encodeRefused(want), 0, testKey, negotiate.Chain{
		Binding: negotiate.Binding{Client: portA, Server: portB}, From: negotiate.FromServer, Prev: negotiate.MAC(seq(0, negotiate.MACLen)),
	})
	require.Equal(t, golden.Vector(t, "refused-cookie"), b)
	got, err := ParseRefused(b)
	require.NoError(t, err)
	require.Equal(t, want, got)
	for i := range b {
		_, err := ParseRefused(b[:i])
		require.Error(t, err)
	}
}

func drawOffers(t *rapid.T, atLeast int) []UDOffer {
	id := rapid.SliceOfN(rapid.Byte(), 16, 16)
	var list []UDOffer
	kinds := rapid.Permutation([]negotiate.CarrierKind{negotiate.CarrierSHM, negotiate.CarrierSoft, negotiate.CarrierHW}).Draw(t, "kinds")
	for _, k := range kinds[:rapid.IntRange(atLeast, len(kinds)).Draw(t, "offers")] {
		o := UDOffer{
			Kind: k, MTU: 256 << rapid.IntRange(0, 4).Draw(t, "mtu"), QPN: rapid.Uint32Range(0, clc.Max24).Draw(t, "qpn"),
			QKey: rapid.Uint32().Draw(t, "qkey"),
		}
		if k == negotiate.CarrierSHM {
			o.Key, o.Name = [16]byte(id.Draw(t, "key")), rapid.StringMatching(`[a-z][a-z.]{0,63}`).Draw(t, "name")
		} else {
			o.GID, o.UDPPort = [16]byte(id.Draw(t, "gid")), rapid.Uint16Range(1, 65535).Draw(t, "port")
		}
		list = append(list, o)
	}
	return list
}

// TestResolutionRoundTrip draws messages; an answer is never longer than its query, whatever both say.
func TestResolutionRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		id := rapid.SliceOfN(rapid.Byte(), 16, 16)
		addr := netip.AddrPortFrom(netip.AddrFrom16([16]byte(id.Draw(t, "addr"))).Unmap(), rapid.Uint16().Draw(t, "port"))
		q := Resolve{
			Nonce: QueryNonce(id.Draw(t, "nonce")), MinVersion: 1, MaxVersion: rapid.Uint8Range(1, 255).Draw(t, "version"),
			GatewayID: [16]byte(id.Draw(t, "gateway")), HostID: [16]byte(id.Draw(t, "host")), Target: addr,
			Cookie: Cookie(id.Draw(t, "cookie")), Offers: drawOffers(t, 0),
		}
		a := Resolved{
			Version: q.MaxVersion, Nonce: q.Nonce, GatewayID: q.GatewayID, HostID: q.HostID, Observed: addr,
			TTL: time.Duration(rapid.IntRange(0, 86400).Draw(t, "ttl")) * time.Second, Offers: drawOffers(t, 1),
		}
		r := Refused{Nonce: q.Nonce, Reason: negotiate.Reason(rapid.Uint8Range(1, 255).Draw(t, "reason")), TTL: a.TTL, Cookie: q.Cookie}
		query := AppendResolve(nil, &q)
		gotQuery, err := parseResolve(query)
		require.NoError(t, err)
		require.Equal(t, q, gotQuery)
		nonce, ok := QueryNonceOf(query)
		require.True(t, ok)
		require.Equal(t, q.Nonce, nonce)

		answer, _ := negotiate.Seal(appendResolved(nil, &a), 0, testKey, negotiate.Chain{})
		gotAnswer, err := ParseResolved(answer)
		require.NoError(t, err)
		require.Equal(t, a, gotAnswer)
		refusal, _ := negotiate.Seal(encodeRefused(r), 0, testKey, negotiate.Chain{})
		gotRefusal, err := ParseRefused(refusal)
		require.NoError(t, err)
		require.Equal(t, r, gotRefusal)
		require.LessOrEqual(t, max(len(answer), len(refusal)), len(query))
		sealed, _ := negotiate.Seal(query, 0, testKey, negotiate.Chain{})
		require.LessOrEqual(t, len(sealed), MaxQueryLen)
	})
}

// TestResolvedIsNeverLongerThanAQuery takes the longest answer there can be.
func TestResolvedIsNeverLongerThanAQuery(t *testing.T) {
	a := goldenResolved()
	a.HostID = [16]byte{1}
	a.Offers = []UDOffer{{Kind: negotiate.CarrierSHM, Name: strings.Repeat("x", clc.MaxRendezvousName)}}
	for k := negotiate.CarrierSoft; len(a.Offers) < negotiate.MaxCarriers; k++ {
		a.Offers = append(a.Offers, UDOffer{Kind: k})
	}
	b, _ := negotiate.Seal(appendResolved(nil, &a), 0, testKey, negotiate.Chain{})
	require.LessOrEqual(t, len(b), minQueryLen)
}

// seeds are a vector, with a MAC, and with a byte changed here and there.
func seeds(f *testing.F, name string) [][]byte {
	whole := golden.Vector(f, name)
	sealed, _ := negotiate.Seal(bytes.Clone(whole), 0, testKey, negotiate.Chain{})
	list := [][]byte{whole, sealed}
	rng := rand.New(rand.NewPCG(1, 2))
	for range 20 {
		b := bytes.Clone(whole)
		b[rng.IntN(len(b))] ^= byte(1 + rng.IntN(255))
		list = append(list, b)
	}
	return list
}

func FuzzParseResolve(f *testing.F) {
	for _, b := range seeds(f, "resolve") {
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		r, _, ok := golden.RoundTrip(t, b, parseResolve, func(r Resolve) []byte { return AppendResolve(nil, &r) })
		if ok {
			nonce, ok := QueryNonceOf(b)
			require.True(t, ok)
			require.Equal(t, r.Nonce, nonce)
		}
	})
}

func FuzzParseResolved(f *testing.F) {
	for _, b := range seeds(f, "resolved") {
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		_, encoded, ok := golden.RoundTrip(t, b, ParseResolved, func(r Resolved) []byte { return appendResolved(nil, &r) })
		if ok {
			require.LessOrEqual(t, len(encoded), minQueryLen)
		}
	})
}

func FuzzParseRefused(f *testing.F) {
	for _, b := range seeds(f, "refused") {
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) { golden.RoundTrip(t, b, ParseRefused, encodeRefused) })
}

func TestAnswerNonce(t *testing.T) {
	q, r := goldenResolve(), Refused{Nonce: QueryNonce{3}, Reason: negotiate.ReasonPolicy}
	_, ok := AnswerNonceOf(AppendResolve(nil, &q))
	require.False(t, ok, "a query")
	msg := encodeRefused(r)
	n, ok := AnswerNonceOf(msg)
	require.True(t, ok)
	require.Equal(t, r.Nonce, n)
	for i := range msg {
		_, ok := AnswerNonceOf(msg[:i])
		require.False(t, ok, i)
	}
	n, ok = AnswerNonceOf(appendResolved(nil, &Resolved{Version: negotiate.Version, Nonce: QueryNonce{4}, Observed: portA}))
	require.True(t, ok)
	require.Equal(t, QueryNonce{4}, n)
}
