package apps

import (
	"bytes"
	"encoding/json"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/lab/leak"
)

func TestMain(m *testing.M) { os.Exit(leak.Main(m)) }

func TestStream(t *testing.T) {
	whole := make([]byte, 1000)
	stream{7}.fill(whole, 0)
	for range 1000 {
		from := rand.IntN(len(whole))
		to := from + rand.IntN(len(whole)-from)
		part := make([]byte, to-from)
		stream{7}.fill(part, int64(from))
		require.Equal(t, whole[from:to], part)
		require.Equal(t, -1, stream{7}.check(part, int64(from)))
		if len(part) > 0 {
			i := rand.IntN(len(part))
			part[i]++
			require.Equal(t, i, stream{7}.check(part, int64(from)))
		}
	}
	other := make([]byte, 1000)
	stream{8}.fill(other, 0)
	require.NotEqual(t, whole, other)
}

func TestOrder(t *testing.T) {
	o := order{seed: 1 << 60, up: 3, down: 1 << 40, late: true, write: 5}
	b := o.bytes()
	require.Len(t, b, orderLen)
	got, err := parseOrder(b)
	require.NoError(t, err)
	require.Equal(t, o, got)
	for i := range b {
		_, err := parseOrder(b[:i])
		require.ErrorIs(t, err, errOrder)
	}
	for _, wrong := range []order{{up: -1}, {down: -1}, {write: -1}, {write: writeLimit + 1}} {
		_, err := parseOrder(wrong.bytes())
		require.ErrorIs(t, err, errOrder, "%+v", wrong)
	}
}

// lying corrupts, truncates or extends what passes through.
type lying struct {
	io.Reader
	at    int64
	delta byte
}

func (l *lying) Read(p []byte) (int, error) {
	n, err := l.Reader.Read(p)
	if l.at >= 0 && l.at < int64(n) {
		p[l.at] += l.delta
	}
	l.at -= int64(n)
	return n, err
}

// A receiver that cannot see an error would make every test pass.
func TestReceiveSeesEverything(t *testing.T) {
	var sent bytes.Buffer
	var n int64
	require.NoError(t, send(&sent, 3, 200000, 0, &n))
	require.EqualValues(t, 200000, n)
	data := sent.Bytes()
	get := func(r io.Reader) error {
		n = 0
		return receiveAll(r, 3, 200000, &n)
	}
	require.NoError(t, get(bytes.NewReader(data)))
	require.Equal(t, wrongByteError{150001}, get(&lying{Reader: bytes.NewReader(data), at: 150001, delta: 1}))
	require.ErrorIs(t, get(bytes.NewReader(data[:199999])), io.ErrUnexpectedEOF)
	require.ErrorIs(t, get(bytes.NewReader(append(data, 0))), errTrailing)
	swapped := append(append(append([]byte(nil), data[:64]...), data[72:80]...), data[64:72]...)
	require.Equal(t, wrongByteError{64}, get(bytes.NewReader(append(swapped, data[80:]...))))
}

// accepting serves connections until the test ends.
func accepting(t *testing.T, s *server, do handler) *net.TCPAddr {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	s.out, s.quiet = &printer{w: io.Discard}, true
	served := make(chan struct{})
	go func() { defer close(served); s.acceptAll(ln, "", do) }()
	t.Cleanup(func() {
		_ = ln.Close()
		<-served
	})
	return ln.Addr().(*net.TCPAddr)
}

// TestVisitThroughProxy: a client sees the server it is forwarded to, whose client is the
// proxy; no server is a reset, and no listener an error of connect().
func TestVisitThroughProxy(t *testing.T) {
	app := accepting(t, &server{tag: "app"}, serveTransfer).String()
	visit := func(to string) Event {
		var out bytes.Buffer
		Main([]string{"visit", "-count", "4", "-to", to}, strings.NewReader(""), &out)
		var e Event
		require.NoError(t, json.Unmarshal(out.Bytes(), &e))
		return e
	}
	e := visit(app)
	require.Len(t, e.Visits, 4)
	for i, v := range e.Visits {
		require.Equal(t, "app at "+app+" saw client", v.Outcome())
		require.Equal(t, v.Sent, v.Received)
		require.Equal(t, i != 2, v.Sent == visitSize, "visit %d", i)
	}
	e = visit(accepting(t, &server{}, proxy{to: app}.pass).String())
	require.Len(t, e.Visits, 4)
	for _, v := range e.Visits {
		require.Equal(t, "app at "+app+" saw client by another port", v.Outcome())
	}
	e = visit(accepting(t, &server{}, proxy{to: "127.0.0.1:1"}.pass).String())
	require.Equal(t, 4, e.Failed)
	require.Regexp(t, "^(connect: ECONNRESET|transfer: (ECONNRESET|EPIPE))$", e.Visits[0].Outcome())
	require.Equal(t, "connect: ECONNREFUSED", visit("127.0.0.1:1").Visits[0].Outcome())
	require.Equal(t, "a server without a name", visit(accepting(t, &server{}, serveTransfer).String()).Visits[0].Outcome())
}

func TestOutcome(t *testing.T) {
	e := Event{OK: 1, Local: "10.0.0.1:40000", Server: &Server{Tag: "app", Local: "10.0.0.2:7001", Remote: "10.0.0.1:40000"}}
	require.Equal(t, "app at 10.0.0.2:7001 saw client", e.Outcome())
	e.Server.Remote = "10.0.0.1:40001"
	require.Equal(t, "app at 10.0.0.2:7001 saw client by another port", e.Outcome())
	e.Server.Remote = "10.0.0.9:40000"
	require.Equal(t, "app at 10.0.0.2:7001 saw 10.0.0.9", e.Outcome())
	e.Failed, e.Errno = 1, "TIMEOUT"
	require.Equal(t, "transfer: TIMEOUT", e.Outcome())
	require.True(t, e.TookTooLong())
	require.False(t, Event{Failed: 1, Errno: "ECONNREFUSED"}.TookTooLong())
}
