package admin

import (
	"context"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/lab/testnet"
)

// lacking is a listener of a host that lacks something for each connection, until it is closed.
type lacking struct {
	lacks  []error
	closed chan struct{}
}

func (l *lacking) Accept() (net.Conn, error) {
	if len(l.lacks) == 0 {
		<-l.closed
		return nil, net.ErrClosed
	}
	err := l.lacks[0]
	l.lacks = l.lacks[1:]
	return nil, &net.OpError{Op: "accept", Err: os.NewSyscallError("accept4", err)}
}

func (l *lacking) Close() error { return nil }

func (l *lacking) Addr() net.Addr { return &net.UnixAddr{} }

// TestServerOfAHostThatLacks: what a connection lacks, memory or a watch of epoll, ends no server.
func TestServerOfAHostThatLacks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		below := &lacking{lacks: []error{unix.ENOMEM, unix.ENOBUFS, unix.ENOSPC, unix.EMFILE}, closed: make(chan struct{})}
		l := limitListener(below, 1)
		ended := make(chan error, 1)
		go func() { ended <- (&http.Server{ErrorLog: log.New(io.Discard, "", 0)}).Serve(l) }()
		time.Sleep(time.Minute)
		synctest.Wait()
		require.Empty(t, below.lacks)
		require.Empty(t, ended)
		close(below.closed)
		require.ErrorIs(t, <-ended, net.ErrClosed)
	})
}

// TestLockIsNoLink: whoever owns the directory cannot have root give away, or lock, a file elsewhere.
func TestLockIsNoLink(t *testing.T) {
	testnet.Require(t, "root")
	dir, other := t.TempDir(), filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(other, nil, 0o600))
	require.NoError(t, os.Chown(dir, 12345, 12345))
	path := filepath.Join(dir, "lock")
	owner := func(file string) int {
		var st unix.Stat_t
		require.NoError(t, unix.Stat(file, &st))
		return int(st.Uid)
	}
	require.NoError(t, os.Symlink(other, path))
	_, err := lockFile(path)
	require.ErrorIs(t, err, unix.ELOOP)
	require.NoError(t, os.Remove(path))
	require.NoError(t, os.Link(other, path))
	f, err := lockFile(path)
	require.NoError(t, err)
	require.NoError(t, f.Close())
	require.Zero(t, owner(other))
	require.NoError(t, os.Remove(path))
	for range 2 {
		f, err = lockFile(path)
		require.NoError(t, err)
		require.NoError(t, f.Close())
		require.Equal(t, 12345, owner(path), "the owner of the directory opens it, too")
	}
}

func TestReadiness(t *testing.T) {
	now := time.Now()
	fine := report.Snapshot{Mode: report.ModeEnforce, Heartbeat: now.Add(-time.Second)}
	for _, c := range []struct {
		name          string
		change        func(s *report.Snapshot)
		ready, strict bool
		says          string
	}{
		{"fine", func(*report.Snapshot) {}, true, true, "ready\nmode enforce\n"},
		{"degraded", func(s *report.Snapshot) { s.Degraded = []string{"device_failed", "address"} }, true, false, "degraded device_failed address\n"},
		{"off", func(s *report.Snapshot) { s.Mode = report.ModeOff }, true, false, "mode off\n"},
		{"observes", func(s *report.Snapshot) { s.Mode = report.ModeObserve }, true, false, "mode observe\n"},
		{"drains", func(s *report.Snapshot) { s.Draining = true }, false, false, "not ready\nthe gateway drains"},
		{"late", func(s *report.Snapshot) { s.Heartbeat = now.Add(-4 * time.Second) }, false, false, "not ready\nthe datapath does not beat"},
		{"starts", func(s *report.Snapshot) { s.Heartbeat = time.Time{} }, false, false, "the datapath does not beat"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := fine
			c.change(&s)
			text, ready := readiness(&s, now, false)
			require.Equal(t, c.ready, ready, text)
			require.Contains(t, text, c.says)
			text, ready = readiness(&s, now, true)
			require.Equal(t, c.strict, ready, text)
		})
	}
}

// Liveness and readiness are answered on the admin socket, too.
func TestProbesOnTheSocket(t *testing.T) {
	a := startAdmin(t, nil)
	for path, code := range map[string]int{"/healthz": http.StatusOK, "/readyz": http.StatusOK, "/readyz?strict=1": http.StatusServiceUnavailable} {
		require.Equal(t, code, rawGet(t, a, "GET", path, nil).StatusCode, path)
	}
}

// TestGate: a client that is not privileged waits behind its like, for so long as the gate
// lets it, and never takes the last place.
func TestGate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGate(3, 2, time.Second)
		enter := func(privileged bool) func() {
			leave, ok := g.Enter(t.Context(), privileged)
			require.True(t, ok)
			return leave
		}
		refused := func(privileged bool) {
			began := time.Now()
			_, ok := g.Enter(t.Context(), privileged)
			require.False(t, ok)
			require.Equal(t, time.Second, time.Since(began))
		}
		first, second := enter(false), enter(false)
		refused(false)
		root := enter(true)
		refused(true)
		first()
		first = enter(false)
		first()
		second()
		root()
		for range 3 {
			defer enter(true)()
		}
	})
}

// TestGateOfOneThatGoes: a client that goes while it waits takes nothing with it.
func TestGateOfOneThatGoes(t *testing.T) {
	g := newGate(1, 1, time.Hour)
	leave, ok := g.Enter(t.Context(), true)
	require.True(t, ok)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, ok = g.Enter(ctx, false)
	require.False(t, ok)
	leave()
	for range 100 { // what is free is not waited for
		leave, ok = g.Enter(ctx, false)
		require.True(t, ok)
		leave()
	}
}
