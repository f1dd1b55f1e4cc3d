package socket

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Both sides end their directions in every order; each gets all that was written before an end, and then io.EOF.
func TestConnHalfClose(t *testing.T) {
	type step struct {
		who  int // which end
		what string
	}
	orders := map[string][]step{
		"client first":     {{0, "write"}, {1, "eof"}, {1, "write"}, {0, "eof"}},
		"server first":     {{1, "write"}, {0, "eof"}, {0, "write"}, {1, "eof"}},
		"crossing":         {{0, "write"}, {1, "write"}, {0, "eof"}, {1, "eof"}},
		"close for write":  {{0, "write"}, {1, "eof"}, {1, "close"}, {0, "eof"}},
		"close at once":    {{0, "close"}, {1, "eof"}, {1, "close"}},
		"read then write":  {{0, "read"}, {0, "write"}, {1, "eof"}, {1, "close"}},
		"write then read":  {{0, "write"}, {0, "read"}, {1, "eof"}, {1, "close"}},
		"both read, write": {{0, "read"}, {1, "read"}, {0, "write"}, {1, "write"}},
	}
	each(t, func(t *testing.T, d *duo) {
		for name, steps := range orders {
			t.Run(name, func(t *testing.T) {
				a, b := d.pair(ConnConfig{})
				ends := [2]*Conn{a, b}
				soon(t, a, b)
				for _, c := range ends {
					_, err := c.Write([]byte("before"))
					require.NoError(t, err)
				}
				for _, s := range steps {
					c := ends[s.who]
					switch s.what {
					case "write":
						require.NoError(t, c.CloseWrite())
						_, err := c.Write([]byte("x"))
						require.ErrorIs(t, err, syscall.EPIPE)
					case "read":
						require.NoError(t, c.CloseRead())
						_, err := c.Read(make([]byte, 1))
						require.ErrorIs(t, err, io.EOF)
					case "close":
						require.NoError(t, c.Close())
					case "eof":
						got, err := io.ReadAll(c)
						require.NoError(t, err)
						require.Equal(t, "before", string(got))
					}
				}
				for _, c := range ends {
					require.NoError(t, c.Close())
					require.NoError(t, c.Close())
					waitFor(t, "nothing is left of a connection that was closed", c.done)
					require.NoError(t, c.Err())
				}
			})
		}
		require.Zero(t, d.a.Stats().Connections)
		require.Zero(t, d.a.Stats().Lingered)
	})
}

// A closed connection still delivers what was written.
func TestConnCloseDelivers(t *testing.T) {
	each(t, func(t *testing.T, d *duo) {
		a, b := d.pair(ConnConfig{})
		soon(t, a, b)
		sent := pattern[:50000]
		go func() {
			for range 40 {
				_, _ = a.Write(sent)
			}
			_ = a.Close()
		}()
		time.Sleep(10 * time.Millisecond) // so that the rings are full
		got, err := io.ReadAll(b)
		require.NoError(t, err)
		require.Equal(t, bytes.Repeat(sent, 40), got)
		_, err = b.Write([]byte("late"))
		require.ErrorIs(t, err, syscall.EPIPE)
		require.NoError(t, b.Close())
	})
}

// A peer that takes nothing ends the delivery after Linger; it loses the connection and does not take it for an end.
func TestConnLinger(t *testing.T) {
	each(t, func(t *testing.T, d *duo) {
		const linger = 50 * time.Millisecond
		a, b := d.connect(ConnConfig{Linger: linger}, ConnConfig{})
		soon(t, a, b)
		for idle := 0; idle < 2; { // until nothing more goes
			require.NoError(t, a.SetWriteDeadline(time.Now().Add(100*time.Millisecond)))
			n, err := a.Write(pattern)
			if idle++; n > 0 {
				idle = 0
			}
			if err != nil {
				require.ErrorIs(t, err, os.ErrDeadlineExceeded)
			}
		}
		start := time.Now()
		require.NoError(t, a.Close())
		waitFor(t, "lingers for ever", a.done)
		require.GreaterOrEqual(t, time.Since(start), linger)
		require.Equal(t, uint64(1), d.a.Stats().Lingered)
		got, err := io.ReadAll(b)
		require.ErrorIs(t, err, syscall.ECONNRESET)
		require.NotEmpty(t, got)
		require.ErrorIs(t, b.Err(), syscall.ECONNRESET)
		_, err = b.Write([]byte("x"))
		require.ErrorIs(t, err, syscall.ECONNRESET)
		require.NoError(t, b.Close())
	})
}

// CloseRead takes what the peer sends and drops it, so that the peer is not held up.
func TestConnCloseReadDrops(t *testing.T) {
	each(t, func(t *testing.T, d *duo) {
		a, b := d.pair(ConnConfig{})
		soon(t, a, b)
		blocked := make(chan error, 1)
		go func() {
			_, err := b.Read(make([]byte, 1))
			blocked <- err
		}()
		time.Sleep(5 * time.Millisecond)
		require.NoError(t, b.CloseRead())
		require.ErrorIs(t, <-blocked, io.EOF)
		for range 100 {
			_, err := a.Write(pattern)
			require.NoError(t, err)
		}
		_, err := b.Write([]byte("still"))
		require.NoError(t, err)
		buf := make([]byte, 5)
		_, err = io.ReadFull(a, buf)
		require.NoError(t, err)
		require.NoError(t, a.Close())
		require.NoError(t, b.Close())
	})
}

// A lost peer is ECONNRESET on both directions, blocked or not, whatever it had sent before; never io.EOF.
func TestConnPeerLost(t *testing.T) {
	for _, writing := range []bool{false, true} {
		t.Run(fmt.Sprintf("writing %t", writing), func(t *testing.T) {
			d := managedDuo(t)
			a, b := d.pair(ConnConfig{})
			soon(t, a, b)
			_, err := b.Write([]byte("before"))
			require.NoError(t, err)
			_, err = io.ReadFull(a, make([]byte, 6))
			require.NoError(t, err)
			ended := make(chan error, 1)
			go func() {
				if writing {
					for {
						if _, err := a.Write(pattern); err != nil {
							ended <- err
							return
						}
					}
				}
				_, err := a.Read(make([]byte, 1))
				ended <- err
			}()
			time.Sleep(20 * time.Millisecond)
			start := time.Now()
			_ = d.b.manager.Close() // as for a process that was killed
			select {
			case err := <-ended:
				require.ErrorIs(t, err, syscall.ECONNRESET)
			case <-time.After(patience):
				require.Fail(t, "the loss is not noticed")
			}
			t.Logf("noticed after %v", time.Since(start))
			_, err = a.Read(make([]byte, 1))
			require.ErrorIs(t, err, syscall.ECONNRESET)
			_, err = a.Write([]byte("x"))
			require.ErrorIs(t, err, syscall.ECONNRESET)
			require.ErrorIs(t, a.Err(), syscall.ECONNRESET)
			require.Equal(t, uint64(1), d.a.Stats().Failed)
			require.NoError(t, a.Close())
			require.NoError(t, b.Close())
		})
	}
}

// A peer that is silent is noticed by keepalives, and by nothing else.
func TestConnKeepAlive(t *testing.T) {
	d := managedDuo(t)
	a, b := d.connect(ConnConfig{KeepAlive: 20 * time.Millisecond}, ConnConfig{})
	soon(t, a, b)
	require.NoError(t, a.SetReadDeadline(time.Now().Add(200*time.Millisecond)))
	_, err := a.Read(make([]byte, 1))
	require.ErrorIs(t, err, os.ErrDeadlineExceeded, "a peer that answers is alive")
	require.NoError(t, a.SetReadDeadline(time.Now().Add(patience)))
	require.NoError(t, b.vec.Do(func() { _ = b.qp.Close() })) // the peer is told nothing
	_, err = a.Read(make([]byte, 1))
	require.ErrorIs(t, err, syscall.ECONNRESET)
	require.NoError(t, a.Close())
	require.NoError(t, b.Close())
}

// The end of a stack ends what uses it.
func TestStackClose(t *testing.T) {
	each(t, func(t *testing.T, d *duo) {
		a, b := d.pair(ConnConfig{})
		ended := make(chan error, 1)
		go func() {
			_, err := a.Read(make([]byte, 1))
			ended <- err
		}()
		_, err := a.Write([]byte("last words"))
		require.NoError(t, err)
		closed := make(chan error, 1)
		go func() { closed <- d.a.Close() }()
		err = <-ended
		if d.a != d.b || err != io.EOF { //nolint:errorlint // where both ends are the stack's, the other may be closed first
			require.ErrorIs(t, err, net.ErrClosed)
		}
		if d.a != d.b {
			got, err := io.ReadAll(b)
			require.NoError(t, err)
			require.Equal(t, "last words", string(got))
		}
		require.NoError(t, <-closed)
		require.NoError(t, d.a.Close())
		_, err = (&Dialer{Stack: d.a}).DialContext(context.Background(), "tcp", "127.0.0.1:1")
		require.ErrorIs(t, err, ErrStackClosed)
	})
}
