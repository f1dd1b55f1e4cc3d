package socket

import (
	"bytes"
	"errors"
	"io"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Asynchronous writes arrive in order, with what is written otherwise after them.
func TestWriteAsync(t *testing.T) {
	each(t, func(t *testing.T, d *duo) {
		a, b := d.pair(ConnConfig{})
		soon(t, a, b)
		var src, want patterned
		var done atomic.Int64
		var all sync.WaitGroup
		total := 0
		all.Go(func() {
			for i := range 200 {
				p := src.next(1 + i*i*7%40000)
				total += len(p)
				if i%10 == 9 {
					_, _ = a.Write(p)
					continue
				}
				all.Add(1)
				_ = a.WriteAsync(p, func(n int, err error) {
					defer all.Done()
					if err == nil && n == len(p) {
						done.Add(1)
					}
				})
			}
			_ = a.CloseWrite()
		})
		n, err := b.WriteTo(&want)
		require.NoError(t, err)
		all.Wait()
		require.Equal(t, int64(180), done.Load())
		require.Equal(t, total, int(n))
		late := make(chan error, 1)
		require.NoError(t, a.WriteAsync([]byte("x"), func(_ int, err error) { late <- err }))
		require.ErrorIs(t, <-late, syscall.EPIPE)
		require.NoError(t, a.Close())
		require.NoError(t, b.Close())
		require.ErrorIs(t, a.WriteAsync(nil, nil), net.ErrClosed)
	})
}

// Asynchronous writes are bounded, and end with the connection.
func TestWriteAsyncEnds(t *testing.T) {
	each(t, func(t *testing.T, d *duo) {
		a, b := d.connect(ConnConfig{Linger: -1}, ConnConfig{})
		var all sync.WaitGroup
		var failed atomic.Int64
		for i := 0; ; i++ {
			all.Add(1)
			err := a.WriteAsync(pattern, func(_ int, err error) {
				defer all.Done()
				if errors.Is(err, net.ErrClosed) {
					failed.Add(1)
				}
			})
			if err != nil {
				all.Done()
				require.ErrorIs(t, err, ErrAsyncFull)
				require.ErrorIs(t, err, syscall.ENOBUFS)
				break
			}
			require.Less(t, i, 10*maxAsync)
		}
		require.NoError(t, a.Close())
		ended := make(chan struct{})
		go func() { all.Wait(); close(ended) }()
		waitFor(t, "callbacks are missing", ended)
		require.NotZero(t, failed.Load())
		_ = b.SetDeadline(time.Now().Add(patience))
		_, err := io.Copy(io.Discard, b)
		require.ErrorIs(t, err, syscall.ECONNRESET, "cut off in the middle")
		require.NoError(t, b.Close())
	})
}

// A callback may use the connection, whatever else is waiting to be written.
func TestWriteAsyncCallbackWrites(t *testing.T) {
	each(t, func(t *testing.T, d *duo) {
		a, b := d.pair(ConnConfig{})
		soon(t, a, b)
		require.NoError(t, a.WriteAsync([]byte("1"), func(int, error) { _, _ = a.Write([]byte("4")) }))
		require.NoError(t, a.WriteAsync([]byte("2"), nothing))
		require.NoError(t, a.WriteAsync([]byte("3"), func(int, error) {
			_ = a.WriteAsync([]byte("5"), func(int, error) { _ = a.CloseWrite() })
		}))
		got, err := io.ReadAll(b)
		require.NoError(t, err)
		sorted := bytes.Clone(got)
		slices.Sort(sorted)
		require.Equal(t, "12345", string(sorted))
		require.Less(t, bytes.IndexByte(got, '1'), bytes.IndexByte(got, '2'))
		require.Less(t, bytes.IndexByte(got, '2'), bytes.IndexByte(got, '3'))
		require.NoError(t, a.Close())
		require.NoError(t, b.Close())
	})
}

func nothing(int, error) {}

// An asynchronous write of nothing ends as Write does.
func TestWriteAsyncNothing(t *testing.T) {
	d := shmDuo(t, 1, StackConfig{})
	a, _ := d.pair(ConnConfig{})
	result := make(chan error, 1)
	for _, want := range []string{"ok", "EPIPE"} {
		require.NoError(t, a.WriteAsync(nil, func(_ int, err error) { result <- err }))
		require.Equal(t, want, kind(outcome(t, "no report", result)))
		require.NoError(t, a.CloseWrite())
	}
}

// CloseWrite returns while asynchronous writes wait for the peer to read, and ends writing after them.
func TestCloseWriteBehindAsync(t *testing.T) {
	each(t, func(t *testing.T, d *duo) {
		a, b := d.pair(ConnConfig{RecvBuffer: 64 << 10, SendBuffer: 64 << 10})
		soon(t, a, b)
		src := make([]byte, 1<<20)
		written, late := make(chan error, 1), make(chan error, 1)
		require.NoError(t, a.WriteAsync(src, func(_ int, err error) { written <- err }))
		require.NoError(t, a.CloseWrite())
		require.NoError(t, a.CloseWrite())
		require.Empty(t, written)
		require.NoError(t, a.WriteAsync([]byte("late"), func(_ int, err error) { late <- err }))
		n, err := io.Copy(io.Discard, b)
		require.NoError(t, err)
		require.EqualValues(t, len(src), n)
		require.NoError(t, <-written)
		require.ErrorIs(t, <-late, syscall.EPIPE)
		_, err = a.Write([]byte("late"))
		require.ErrorIs(t, err, syscall.EPIPE)
		require.NoError(t, a.Close())
		require.NoError(t, b.Close())
	})
}
