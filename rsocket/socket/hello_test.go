package socket

import (
	"context"
	"io"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/rsocket"
	"github.com/smcgw/smcgw/verbs"
)

func testHello() hello {
	return hello{
		qpn: 0x123456, psn: 0xabcdef, gid: verbs.GID{0: 0xfe, 15: 1}, udpPort: 4791, mtu: verbs.MTU1024,
		data: rsocket.ConnData{Iomap: true, Credits: 256, TargetSGL: rsocket.SGE{Addr: 1, Key: 2, Length: 16}, DataBuf: rsocket.SGE{Addr: 3, Key: 4, Length: 65536}},
	}
}

func TestHello(t *testing.T) {
	want := testHello()
	b := want.bytes()
	require.Len(t, b, helloSize)
	require.Equal(t, "RSOB\x01\x00\x00\x50", string(b[:8]))
	var got hello
	require.NoError(t, got.parse(b))
	require.Equal(t, want, got)
	for at, value := range map[int]byte{0: 'x', 6: 1, 7: 81, 8: 1, 12: 1, 34: 6} {
		bad := want.bytes()
		bad[at] = value
		require.ErrorIs(t, got.parse(bad), ErrHello, "byte %d", at)
	}
	for _, at := range []int{4, 40} {
		bad := want.bytes()
		bad[at] = 2
		require.ErrorIs(t, got.parse(bad), rsocket.ErrVersion, "byte %d", at)
	}
}

func TestHelloTruncated(t *testing.T) {
	h := testHello()
	b := h.bytes()
	for n := range b {
		require.ErrorIs(t, h.parse(b[:n]), ErrHello, "%d bytes", n)
	}
}

func FuzzHello(f *testing.F) {
	h := testHello()
	f.Add(h.bytes())
	f.Add(make([]byte, helloSize))
	f.Fuzz(func(t *testing.T, b []byte) {
		var h, again hello
		if h.parse(b) != nil {
			return
		}
		require.NoError(t, again.parse(h.bytes()))
		require.Equal(t, h, again)
	})
}

// Whatever the other side of the byte stream does, the exchange ends, and nothing is left of it.
func TestOutOfBandFails(t *testing.T) {
	d := softOutOfBand(t, StackConfig{})
	h := testHello()
	peers := map[string]func(c net.Conn){
		"silent":    func(net.Conn) {},
		"gone":      func(c net.Conn) { _ = c.Close() },
		"garbage":   func(c net.Conn) { _, _ = io.Copy(c, strings.NewReader(strings.Repeat("x", 200))) },
		"truncated": func(c net.Conn) { _, _ = c.Write(h.bytes()[:50]); _ = c.Close() },
		"no such queue pair": func(c net.Conn) {
			go func() { _, _ = io.Copy(io.Discard, c) }()
			_, _ = c.Write(h.bytes())
			time.Sleep(50 * time.Millisecond)
			_ = c.Close()
		},
	}
	for name, behave := range peers {
		for role, meet := range map[string]func(context.Context, net.Conn, ConnConfig) (*Conn, error){
			"client": d.a.Client, "server": d.a.Server,
		} {
			t.Run(name+"/"+role, func(t *testing.T) {
				x, y := socketPair(t)
				defer y.Close()
				go behave(y)
				ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
				defer cancel()
				c, err := meet(ctx, x, ConnConfig{})
				if err == nil { // the byte stream was cut after the exchange
					soon(t, c)
					_, err = c.Read(make([]byte, 1))
					require.ErrorIs(t, err, syscall.ECONNRESET)
					require.NoError(t, c.Close())
					waitFor(t, "no end", c.done)
				} else {
					require.Zero(t, d.a.Stats().Pool.Used)
				}
				if name == "silent" {
					require.ErrorIs(t, err, os.ErrDeadlineExceeded)
				}
				require.Zero(t, d.a.Stats().Connections)
			})
		}
	}
	x, y := socketPair(t)
	defer y.Close()
	ctx, cancel := context.WithCancelCause(t.Context())
	time.AfterFunc(10*time.Millisecond, func() { cancel(io.ErrNoProgress) })
	_, err := d.a.Client(ctx, x, ConnConfig{})
	require.ErrorIs(t, err, io.ErrNoProgress)
}

// late is a byte stream whose deadline passes at once.
type late struct{ net.Conn }

func (late) Read([]byte) (int, error) {
	return 0, &net.OpError{Op: "read", Net: "tcp", Err: os.ErrDeadlineExceeded}
}

// A peer that never answers is a timeout to a program that asks, whichever end waits for it.
func TestOutOfBandSilentPeer(t *testing.T) {
	d := softOutOfBand(t, StackConfig{})
	for _, meet := range []func(context.Context, net.Conn, ConnConfig) (*Conn, error){d.a.Client, d.a.Server} {
		x, y := socketPair(t)
		_, err := meet(t.Context(), late{x}, ConnConfig{})
		require.Equal(t, "timeout", kind(err))
		require.NoError(t, y.Close())
	}
}
