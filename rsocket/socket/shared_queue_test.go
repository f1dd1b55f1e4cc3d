package socket

import (
	"errors"
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// The shared receives of a vector grow when more arrives at once than they are, and nothing is lost.
func TestSharedQueueGrows(t *testing.T) {
	d := shmDuo(t, 1, StackConfig{})
	const conns, writes = 4, 200
	var ends [conns][2]*Conn
	for i := range ends {
		a, b := d.pair(ConnConfig{})
		soon(t, a, b)
		ends[i] = [2]*Conn{a, b}
	}
	v := d.b.vectors[0]
	require.Eventually(t, v.TryEnter, 30*time.Second, time.Microsecond) // no loop takes anything
	for range writes {
		for _, e := range ends {
			_, err := e[0].Write([]byte{1})
			require.NoError(t, err)
		}
	}
	v.Leave()
	for _, e := range ends {
		_, err := io.ReadFull(e[1], make([]byte, writes))
		require.NoError(t, err)
	}
	require.Eventually(t, func() bool { return d.b.Stats().SharedGrown > 0 }, 30*time.Second, time.Millisecond)
	for _, e := range ends {
		require.NoError(t, e[0].Close())
		require.NoError(t, e[1].Close())
	}
}

// Without shared receives everything works as well.
func TestNoSharedQueue(t *testing.T) {
	for name, open := range duos {
		t.Run(name, func(t *testing.T) {
			d := open(t, StackConfig{NoSRQ: true})
			a, b := d.pair(ConnConfig{})
			soon(t, a, b)
			go echo(b)
			require.NoError(t, converse(a, 3, 50))
			require.NoError(t, a.Close())
			waitFor(t, "no end", b.done)
		})
	}
}

// A reader or writer of the program that lasts beyond the end of the connection keeps none of its memory, and sees no byte
// change.
func TestConnCopyOutlivesClose(t *testing.T) {
	each(t, func(t *testing.T, d *duo) {
		a, b := d.pair(ConnConfig{Linger: 10 * time.Millisecond})
		soon(t, a, b)
		_, err := b.Write(pattern[:5000])
		require.NoError(t, err)
		inside, leave := make(chan struct{}, 1), make(chan struct{})
		var seen []byte
		result := make(chan error, 2)
		go func() {
			_, err := a.WriteTo(writerFunc(func(p []byte) (int, error) {
				inside <- struct{}{}
				<-leave
				seen = append(seen, p...)
				return len(p), nil
			}))
			result <- err
		}()
		<-inside
		go func() {
			_, err := a.ReadFrom(readerFunc(func(p []byte) (int, error) {
				inside <- struct{}{}
				<-leave
				return copy(p, "too late"), nil
			}))
			result <- err
		}()
		<-inside
		require.NoError(t, a.Close())
		require.NoError(t, b.Close())
		waitFor(t, "no end", a.done)
		waitFor(t, "no end", b.done)
		require.Zero(t, d.a.Stats().Pool.Used)
		close(leave)
		for range 2 {
			require.Error(t, <-result)
		}
		require.Equal(t, pattern[:len(seen)], seen)
	})
}

type writerFunc func(p []byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

type readerFunc func(p []byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

// Writers and readers that fail, or claim what cannot be, end the copying and nothing else.
func TestConnCopyErrors(t *testing.T) {
	each(t, func(t *testing.T, d *duo) {
		a, b := d.pair(ConnConfig{})
		soon(t, a, b)
		broken := errors.New("broken")
		n, err := a.ReadFrom(io.MultiReader(readerFunc(func(p []byte) (int, error) { return copy(p, "some"), broken })))
		require.ErrorIs(t, err, broken)
		require.Equal(t, int64(4), n)
		_, err = a.ReadFrom(readerFunc(func(p []byte) (int, error) { return len(p) + 1, nil }))
		require.Error(t, err)
		n, err = b.WriteTo(writerFunc(func(p []byte) (int, error) { return 1, broken }))
		require.ErrorIs(t, err, broken)
		require.Equal(t, int64(1), n)
		n, err = b.WriteTo(writerFunc(func(p []byte) (int, error) { return 1, nil }))
		require.ErrorIs(t, err, io.ErrShortWrite)
		require.Equal(t, int64(1), n)
		buf := make([]byte, 2)
		_, err = io.ReadFull(b, buf)
		require.NoError(t, err)
		require.Equal(t, "me", string(buf))
		require.NoError(t, a.Close())
		require.NoError(t, b.Close())
	})
}
