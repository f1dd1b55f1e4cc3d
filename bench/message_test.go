package bench

import (
	"bytes"
	"encoding/hex"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func filled[T ~[16]byte | ~[32]byte](first byte) (v T) {
	switch a := any(&v).(type) {
	case *[16]byte:
		for i := range a {
			a[i] = first + byte(i)
		}
	case *[32]byte:
		for i := range a {
			a[i] = first + byte(i)
		}
	}
	return v
}

// messages is one of each, with its bytes.
var messages = []struct {
	m    message
	wire string
}{
	{challenge{filled[[16]byte](0x10)}, "0100 0010 101112131415161718191a1b1c1d1e1f"},
	{
		hello{filled[[16]byte](0x20), filled[[32]byte](0x40)},
		"0200 0030 202122232425262728292a2b2c2d2e2f 404142434445464748494a4b4c4d4e4f505152535455565758595a5b5c5d5e5f",
	},
	{
		welcome{filled[[32]byte](0x40), filled[[16]byte](0x60), "é"},
		"0300 0032 404142434445464748494a4b4c4d4e4f505152535455565758595a5b5c5d5e5f 606162636465666768696a6b6c6d6e6f c3a9",
	},
	{sample{0x01020304}, "0400 0004 01020304"},
	{
		reading{7, 1, unknownCPU, 3, 4, 5},
		"0500 002c 00000007 0000000000000001 ffffffffffffffff 0000000000000003 0000000000000004 0000000000000005",
	},
	{refusal{refusedBusy, "no"}, "0600 0004 0002 6e6f"},
	{weigh{0x01020304}, "0700 0004 01020304"},
	{
		weight{7, Memory{1, 2, unknownBytes, 4, 5, 6}},
		"0800 0034 00000007 0000000000000001 0000000000000002 ffffffffffffffff 0000000000000004 0000000000000005 0000000000000006",
	},
}

func TestMessages(t *testing.T) {
	for _, c := range messages {
		want, err := hex.DecodeString(strings.ReplaceAll(c.wire, " ", ""))
		require.NoError(t, err)
		got := appendMessage([]byte("before"), c.m)
		require.Equal(t, want, got[6:])
		m, n, err := parseMessage(append(want, 0xff))
		require.NoError(t, err)
		require.Equal(t, len(want), n)
		require.Equal(t, c.m, m)
	}
}

func TestMessagesTruncated(t *testing.T) {
	for _, c := range messages {
		wire := appendMessage(nil, c.m)
		for i := range wire {
			_, _, err := parseMessage(wire[:i])
			require.ErrorIs(t, err, errShort, "%d bytes of type %d", i, c.m.kind())
		}
	}
}

func TestMalformedMessages(t *testing.T) {
	for name, wire := range map[string]string{
		"type 0": "00000000", "type 9": "09000000", "flags": "04010004 00000000", "too long": "0400ffff",
		"body short": "04000003 000000", "body long": "04000005 0000000000", "no code": "06000001 00",
		"text no UTF-8": "06000003 0001 ff", "text long": "06000103 0001" + strings.Repeat("61", maxText+1),
	} {
		b, err := hex.DecodeString(strings.ReplaceAll(wire, " ", ""))
		require.NoError(t, err)
		_, _, err = parseMessage(b)
		require.ErrorIs(t, err, ErrProtocol, name)
	}
}

func TestTextsAreCut(t *testing.T) {
	m, _, err := parseMessage(appendMessage(nil, refusal{1, strings.Repeat("é", maxText)}))
	require.NoError(t, err)
	require.Equal(t, strings.Repeat("é", maxText/2), m.(refusal).text)
}

func FuzzMessage(f *testing.F) {
	for _, c := range messages {
		f.Add(appendMessage(nil, c.m))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		m, n, err := parseMessage(b)
		if err != nil {
			require.Nil(t, m)
			return
		}
		require.Equal(t, b[:n], appendMessage(nil, m))
	})
}

func TestOrder(t *testing.T) {
	o := order{workDownload, 0x010203, 0x0405 * time.Millisecond, filled[[16]byte](0x70)}
	wire := append([]byte("SMGB\x01\x02\x00\x00\x00\x01\x02\x03\x00\x00\x04\x05"), o.session[:]...)
	require.Equal(t, wire, o.bytes())
	require.Len(t, wire, orderSize)
	got, err := parseOrder(wire)
	require.NoError(t, err)
	require.Equal(t, o, got)
	for name, edit := range map[string]func(b []byte){
		"magic": func(b []byte) { b[0] = 'X' }, "version": func(b []byte) { b[4] = 2 }, "flags": func(b []byte) { b[7] = 1 },
		"no work": func(b []byte) { b[5] = 0 }, "other work": func(b []byte) { b[5] = 5 },
		"size": func(b []byte) { b[8] = 1 }, "time": func(b []byte) { b[12] = 1 },
	} {
		b := bytes.Clone(wire)
		edit(b)
		_, err := parseOrder(b)
		require.ErrorIs(t, err, ErrProtocol, name)
	}
}

func TestOrderTruncated(t *testing.T) {
	wire := order{work: workEcho}.bytes()
	for i := range wire {
		_, err := parseOrder(wire[:i])
		require.ErrorIs(t, err, errShort)
	}
}

func FuzzOrder(f *testing.F) {
	f.Add(order{workEcho, 64, time.Second, filled[[16]byte](1)}.bytes())
	f.Fuzz(func(t *testing.T, b []byte) {
		if o, err := parseOrder(b); err == nil {
			require.Equal(t, b[:orderSize], o.bytes())
		}
	})
}

func TestToken(t *testing.T) {
	a, b := NewToken(), NewToken()
	require.NotEqual(t, a, b)
	got, err := ParseToken(" " + strings.ToUpper(a.String()) + "\n")
	require.NoError(t, err)
	require.Equal(t, a, got)
	for _, s := range []string{"", "x", a.String()[:25], a.String() + "a", strings.Repeat("1", 26)} {
		_, err := ParseToken(s)
		require.ErrorIs(t, err, ErrToken, s)
	}
	require.NotEqual(t, a.proof(serving, [16]byte{}, [16]byte{}), a.proof(measuring, [16]byte{}, [16]byte{}))
}

func FuzzToken(f *testing.F) {
	f.Add(Token{1, 2, 3}.String())
	f.Fuzz(func(t *testing.T, s string) {
		token, err := ParseToken(s)
		if err != nil {
			return
		}
		again, err := ParseToken(token.String())
		require.NoError(t, err)
		require.Equal(t, token, again)
	})
}

func TestStatCPU(t *testing.T) {
	const stat = "42 (a) b (c) S 1 42 42 0 -1 4194560 1000 0 0 0 7 3 0 0 20 0 5 0 100 1000 200"
	require.EqualValues(t, 100*time.Millisecond, statCPU([]byte(stat)))
	for i := range len(stat) - len(" 0 0 20 0 5 0 100 1000 200") - 1 {
		if got := statCPU([]byte(stat[:i])); got != unknownCPU {
			t.Fatalf("%q gives %d", stat[:i], got)
		}
	}
	require.Equal(t, unknownCPU, statCPU([]byte("1 (x) S 1 2 3 4 5 6 7 8 9 10 a b")))
	require.Equal(t, unknownCPU, processCPU(0))
	require.NotEqual(t, unknownCPU, ownCPU())
}
