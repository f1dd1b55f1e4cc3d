package remote

import (
	"bytes"
	"context"
	"encoding/binary"
	"net"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/lab/leak"
)

func TestMain(m *testing.M) { os.Exit(leak.Main(m)) }

// start runs a program through a connection to a server.
func start(t *testing.T, args ...string) *Process {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	served := make(chan error, 1)
	go func() { served <- Serve(ln) }()
	t.Cleanup(func() {
		require.NoError(t, ln.Close())
		require.ErrorIs(t, <-served, net.ErrClosed)
	})
	conn, err := net.Dial("tcp", ln.Addr().String())
	require.NoError(t, err)
	p, err := Start(conn, Command{Args: args, Env: []string{"WORD=hello"}})
	require.NoError(t, err)
	t.Cleanup(p.Kill)
	return p
}

func patience(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func TestOutputAndStatus(t *testing.T) {
	p := start(t, "sh", "-c", "echo $WORD; echo error >&2")
	require.NoError(t, p.Wait(patience(t)))
	require.Equal(t, "hello\nerror\n", p.Output())

	p = start(t, "sh", "-c", "echo bad; exit 7")
	err := p.Wait(patience(t))
	var exit *ExitError
	require.ErrorAs(t, err, &exit)
	require.Equal(t, 7, exit.Code)
	require.ErrorContains(t, err, "bad")

	p = start(t, "/no/such/program")
	require.ErrorContains(t, p.Wait(patience(t)), "no such file")
}

func TestFrameTruncated(t *testing.T) {
	var b bytes.Buffer
	require.NoError(t, (&frameWriter{w: &b}).write(kindOutput, []byte("hello")))
	kind, body, err := readFrame(bytes.NewReader(b.Bytes()))
	require.NoError(t, err)
	require.Equal(t, kindOutput, kind)
	require.Equal(t, "hello", string(body))
	for n := range b.Len() {
		_, _, err := readFrame(bytes.NewReader(b.Bytes()[:n]))
		require.Error(t, err, n)
	}
	huge := binary.BigEndian.AppendUint32([]byte{kindOutput}, maxFrame+1)
	_, _, err = readFrame(bytes.NewReader(huge))
	require.ErrorContains(t, err, "frame of")
}
