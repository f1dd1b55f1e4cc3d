package visit

import (
	"bytes"
	"io"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/lab/leak"
)

func TestMain(m *testing.M) { os.Exit(leak.Main(m)) }

func TestReceiveFindsWhatIsWrong(t *testing.T) {
	var b bytes.Buffer
	require.NoError(t, send(&b, 7, 40_000))
	good := b.Bytes()
	n, err := receive(bytes.NewReader(good), 7, 40_000)
	require.NoError(t, err)
	require.EqualValues(t, 40_000, n)

	_, err = receive(bytes.NewReader(good[:39_999]), 7, 40_000)
	require.ErrorIs(t, err, io.EOF)
	_, err = receive(bytes.NewReader(good), 8, 40_000)
	require.ErrorIs(t, err, errWrongByte)
	for _, at := range []int{0, 16 << 10, 39_999} {
		bad := bytes.Clone(good)
		bad[at] ^= 1
		_, err = receive(bytes.NewReader(bad), 7, 40_000)
		require.ErrorIs(t, err, errWrongByte, "byte %d", at)
	}
	require.NoError(t, finished(bytes.NewReader(nil)))
	require.ErrorIs(t, finished(bytes.NewReader(good)), errTooMuch)
}

func TestOutcome(t *testing.T) {
	o := Observation{Local: "10.0.0.1:40000", Server: Greeting{Tag: "app", Local: "10.0.0.2:7001", Remote: "10.0.0.1:40000"}}
	require.Equal(t, "app at 10.0.0.2:7001 saw client", o.Outcome())
	o.Server.Remote = "10.0.0.1:40001"
	require.Equal(t, "app at 10.0.0.2:7001 saw client by another port", o.Outcome())
	o.Server.Remote, o.Peer = "10.0.0.9:40000", "10.0.0.3:1"
	require.Equal(t, "app at 10.0.0.2:7001 saw 10.0.0.9, peer 10.0.0.3:1", o.Outcome())
	o.Failed = "greeting: TIMEOUT"
	require.Equal(t, "greeting: TIMEOUT", o.Outcome())
	require.True(t, o.TookTooLong())
	require.False(t, Observation{Failed: "connect: ECONNREFUSED"}.TookTooLong())
}

// TestThroughProxy: a client sees the server it is forwarded to, whose client is
// the proxy; a port without a listener is an error of connect().
func TestThroughProxy(t *testing.T) {
	server, front := listener(t), listener(t)
	go func() { _ = acceptAll(server, func(c *net.TCPConn) { answer(c, "app") }) }()
	go func() { _ = acceptAll(front, proxy{to: server.Addr().String()}.pass) }()
	c := client{to: netip.MustParseAddrPort(front.Addr().String()), count: 4, patience: 10 * time.Second, size: 100_000, hopeless: 1, budget: time.Minute}
	all := c.visits()
	require.Len(t, all, 4)
	for _, o := range all {
		require.Equal(t, "app at "+server.Addr().String()+" saw client by another port", o.Outcome())
		require.Equal(t, o.Up, o.Server.Up)
	}
	require.NoError(t, server.Close())
	require.Contains(t, []string{"connect: ECONNRESET", "request: ECONNRESET", "send: ECONNRESET", "send: EPIPE", "shutdown: ENOTCONN", "greeting: ECONNRESET"}, c.once(0).Failed)
	require.NoError(t, front.Close())
	require.Equal(t, "connect: ECONNREFUSED", c.once(0).Failed)
}

func listener(t *testing.T) net.Listener {
	t.Helper()
	ln, err := listen("127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = ln.Close() })
	return ln
}
