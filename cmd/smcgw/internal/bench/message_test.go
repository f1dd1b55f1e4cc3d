package bench

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/internal/golden"
)

func filled(first byte) (v [16]byte) {
	for i := range v {
		v[i] = first + byte(i)
	}
	return v
}

// messages is one of each, with its line.
var messages = []struct {
	m    message
	wire string
}{
	{message{Nonce: []byte("0123456789abcdef")}, `{"nonce":"MDEyMzQ1Njc4OWFiY2RlZg=="}`},
	{message{Ask: askMeters}, `{"ask":"meters"}`},
	{
		message{Meters: &reading{1, unknownCPU, 3, 4, 5}},
		`{"meters":{"own_cpu":1,"gateway_cpu":18446744073709551615,"received":3,"sent":4,"conns":5}}`,
	},
	{
		message{Memory: &Memory{1, 2, unknownBytes, 4, 5, 6}},
		`{"memory":{"rings":1,"rings_limit":2,"heap":18446744073709551615,"resident":4,"flows":5,"flow_limit":6}}`,
	},
}

// told is what comes of bytes at one end.
func told(t *testing.T, b []byte) (message, error) {
	t.Helper()
	ours, theirs := net.Pipe()
	go func() {
		_, _ = theirs.Write(b)
		_ = theirs.Close()
	}()
	defer ours.Close()
	return newTalk(ours).receive()
}

func TestMessages(t *testing.T) {
	for _, c := range messages {
		ours, theirs := net.Pipe()
		go func() { _ = newTalk(theirs).send(c.m) }()
		line, err := bufio.NewReader(ours).ReadString('\n')
		require.NoError(t, err)
		require.Equal(t, c.wire+"\n", line)
		require.NoError(t, ours.Close())
		got, err := told(t, []byte(line))
		require.NoError(t, err)
		require.Equal(t, c.m, got)
		for i := range line {
			_, err := told(t, []byte(line[:i]))
			require.ErrorIs(t, err, io.ErrUnexpectedEOF)
		}
	}
}

func TestMessagesTruncated(t *testing.T) {
	for _, c := range messages {
		for i := range c.wire {
			_, err := parseMessage([]byte(c.wire[:i]))
			require.ErrorIs(t, err, ErrProtocol)
		}
	}
}

func TestMalformedMessages(t *testing.T) {
	for name, line := range map[string]string{
		"nothing": "", "no object": "7", "nonce": `{"nonce":"MDEy"}`, "proof": `{"proof":"MDEy"}`, "session": `{"session":"MDEy"}`,
		"number": `{"meters":{"own_cpu":-1}}`, "text": `{"note":"` + strings.Repeat("a", maxText+1) + `"}`, "line": strings.Repeat(" ", maxLine),
	} {
		_, err := told(t, []byte(line+"\n"))
		require.ErrorIs(t, err, ErrProtocol, name)
	}
}

func TestTextsAreCut(t *testing.T) {
	require.Equal(t, strings.Repeat("é", maxText/2), cut(strings.Repeat("é", maxText)))
}

// FuzzMessage: what is read is written as what is read again.
func FuzzMessage(f *testing.F) {
	for _, c := range messages {
		f.Add([]byte(c.wire))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		golden.RoundTrip(t, b, func(b []byte) (wire string, err error) {
			m, err := parseMessage(b)
			if err != nil {
				require.Equal(t, message{}, m)
				return "", err
			}
			again, err := json.Marshal(m)
			require.NoError(t, err)
			return string(again), nil
		}, func(wire string) []byte { return []byte(wire) })
	})
}

// TestWrongToken: who does not know the token is refused, and a server that does not is not
// believed, whatever it says.
func TestWrongToken(t *testing.T) {
	to, token := serveHere(t, nil)
	_, err := open(t.Context(), to, NewToken())
	require.ErrorIs(t, err, ErrRefused)
	require.ErrorContains(t, err, "smcgw bench --serve")

	nonce, id := random[[nonceSize]byte](), random[[sessionSize]byte]()
	for name, answer := range map[string]func(hello message) message{
		"nothing":   func(message) message { return message{} },
		"no proof":  func(message) message { return message{Session: id[:]} },
		"our proof": func(hello message) message { return message{Proof: hello.Proof, Session: id[:]} },
		"no session": func(hello message) message {
			p := token.proof(serving, nonce, [nonceSize]byte(hello.Nonce))
			return message{Proof: p[:]}
		},
	} {
		ours, theirs := net.Pipe()
		go func() {
			_, _ = io.ReadFull(theirs, make([]byte, openingSize))
			s := newTalk(theirs)
			_ = s.send(message{Nonce: nonce[:]})
			hello, err := s.receive()
			if err == nil {
				_ = s.send(answer(hello))
			}
		}()
		s := &session{talk: newTalk(ours)}
		require.ErrorIs(t, s.meet(token), ErrProtocol, name)
		require.NoError(t, ours.Close())
	}
}

func TestOrder(t *testing.T) {
	o := order{workDownload, 0x010203, 0x0405 * time.Millisecond, filled(0x70)}
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
	f.Add(order{workEcho, 64, time.Second, filled(1)}.bytes())
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

func TestProcessorTime(t *testing.T) {
	require.Equal(t, unknownCPU, processCPU(0))
	require.NotEqual(t, unknownCPU, ownCPU())
}
