package socket

import (
	"errors"
	"io"
	"net"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// stream is what the kernel's connections and ours are.
type stream interface {
	net.Conn
	CloseRead() error
	CloseWrite() error
}

var _, _ stream = (*net.TCPConn)(nil), (*Conn)(nil)

// eachStream runs a test with connections of the kernel, which say what is right, and with every kind of ours.
func eachStream(t *testing.T, f func(t *testing.T, a, b stream)) {
	t.Run("native", func(t *testing.T) {
		a, b := socketPair(t)
		defer a.Close()
		defer b.Close()
		f(t, a.(stream), b.(stream))
	})
	each(t, func(t *testing.T, d *duo) {
		a, b := d.pair(ConnConfig{Linger: -1})
		defer a.Close()
		defer b.Close()
		f(t, a, b)
	})
}

// longAgo is a deadline that has passed.
var longAgo = time.Unix(1, 0)

// outcome waits for the result of an operation.
func outcome(t testing.TB, what string, c <-chan error) error {
	t.Helper()
	select {
	case err := <-c:
		return err
	case <-time.After(patience):
		t.Fatal(what)
		return nil
	}
}

// kind is what a program sees of an error.
func kind(err error) string {
	var ne net.Error
	timeout := errors.As(err, &ne) && ne.Timeout()
	switch {
	case err == nil:
		return "ok"
	case err == io.EOF: //nolint:errorlint // as programs compare it
		return "EOF"
	case errors.Is(err, net.ErrClosed) && !timeout:
		return "closed"
	case errors.Is(err, os.ErrDeadlineExceeded) && timeout:
		return "timeout"
	case errors.Is(err, syscall.EPIPE) && !timeout:
		return "EPIPE"
	}
	return err.Error()
}

// Whatever waits, and after whatever, ends with the deadline, with Close, and with the end of its direction.
func TestEndsOfWaiting(t *testing.T) {
	calls := []func(c stream) error{
		func(c stream) error { _, err := c.Read(make([]byte, 1)); return err },
		func(c stream) error {
			for {
				if _, err := c.Write(pattern); err != nil {
					return err
				}
			}
		},
	}
	for name, end := range map[string]struct {
		do   func(c stream) error
		want []string
	}{
		"deadline": {func(c stream) error { return c.SetDeadline(longAgo) }, []string{"timeout", "timeout"}},
		"close":    {stream.Close, []string{"closed", "closed"}},
		"halves":   {func(c stream) error { return errors.Join(c.CloseRead(), c.CloseWrite()) }, []string{"EOF", "EPIPE"}},
	} {
		t.Run(name, func(t *testing.T) {
			eachStream(t, func(t *testing.T, a, _ stream) {
				results := make([]chan error, len(calls))
				for i, call := range calls {
					results[i] = make(chan error, 1)
					go func() { results[i] <- call(a) }()
				}
				require.NoError(t, end.do(a))
				for i, want := range end.want {
					require.Equal(t, want, kind(outcome(t, "a call hangs", results[i])), "call %d", i)
				}
			})
		})
	}
}

// In which order deadlines, ends and bytes count.
func TestOrderOfErrors(t *testing.T) {
	type step struct {
		do   func(a, b stream) error
		want string
	}
	read := func(n int) func(a, _ stream) error {
		return func(a, _ stream) error { _, err := a.Read(make([]byte, n)); return err }
	}
	write := func(n int) func(a, _ stream) error {
		return func(a, _ stream) error { _, err := a.Write(make([]byte, n)); return err }
	}
	limit := func(to time.Time) func(a, _ stream) error {
		return func(a, _ stream) error { return a.SetDeadline(to) }
	}
	send := func(_, b stream) error { _, err := b.Write([]byte("x")); return err }
	closeA := func(a, _ stream) error { return a.Close() }
	closeRead := func(a, _ stream) error { return a.CloseRead() }
	closeWrite := func(a, _ stream) error { return a.CloseWrite() }
	peerEnds := func(_, b stream) error { return b.CloseWrite() }
	for name, steps := range map[string][]step{
		"a deadline goes before bytes": {{send, "ok"}, {limit(longAgo), "ok"}, {read(1), "timeout"}, {limit(time.Time{}), "ok"}, {read(1), "ok"}},
		"and before the end":           {{peerEnds, "ok"}, {limit(longAgo), "ok"}, {read(1), "timeout"}, {limit(time.Time{}), "ok"}, {read(1), "EOF"}},
		"and before the own end": {
			{closeRead, "ok"},
			{closeWrite, "ok"},
			{limit(longAgo), "ok"},
			{read(1), "timeout"},
			{write(1), "timeout"},
			{limit(time.Time{}), "ok"},
			{read(1), "EOF"},
			{write(1), "EPIPE"},
			{write(0), "EPIPE"},
		},
		"nothing can be read in no time": {{limit(longAgo), "ok"}, {read(0), "ok"}, {write(0), "timeout"}},
		"Close goes before a deadline": {
			{limit(longAgo), "ok"},
			{closeA, "ok"},
			{read(1), "closed"},
			{write(1), "closed"},
			{read(0), "closed"},
			{write(0), "closed"},
			{limit(longAgo), "closed"},
			{closeRead, "closed"},
			{closeWrite, "closed"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			eachStream(t, func(t *testing.T, a, b stream) {
				for i, s := range steps {
					result := make(chan error, 1)
					go func() { result <- s.do(a, b) }()
					require.Equal(t, s.want, kind(outcome(t, "a call hangs", result)), "step %d", i)
				}
			})
		})
	}
}
