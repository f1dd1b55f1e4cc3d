package process

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// fakeManager is a socket as systemd has it.
type fakeManager struct {
	t    *testing.T
	conn *net.UnixConn
	env  map[string]string
}

func newFakeManager(t *testing.T) *fakeManager {
	t.Helper()
	path := filepath.Join(t.TempDir(), "notify")
	c, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return &fakeManager{t: t, conn: c, env: map[string]string{"NOTIFY_SOCKET": path}}
}

func (f *fakeManager) getenv(name string) string { return f.env[name] }

func (f *fakeManager) next() string {
	f.t.Helper()
	require.NoError(f.t, f.conn.SetReadDeadline(time.Now().Add(patience)))
	b := make([]byte, 4096)
	n, err := f.conn.Read(b)
	require.NoError(f.t, err)
	return string(b[:n])
}

func TestServiceManager(t *testing.T) {
	f := newFakeManager(t)
	m, err := NewServiceManager(f.getenv, nil)
	require.NoError(t, err)
	m.Ready()
	require.Equal(t, "READY=1", strings.Split(f.next(), "\n")[0])
	var before, after unix.Timespec
	require.NoError(t, unix.ClockGettime(unix.CLOCK_MONOTONIC, &before))
	m.Reloading()
	require.NoError(t, unix.ClockGettime(unix.CLOCK_MONOTONIC, &after))
	state, usec, ok := strings.Cut(f.next(), "\nMONOTONIC_USEC=")
	require.True(t, ok)
	require.Equal(t, "RELOADING=1", state)
	at, err := strconv.ParseInt(usec, 10, 64)
	require.NoError(t, err)
	require.GreaterOrEqual(t, at, before.Nano()/1000)
	require.LessOrEqual(t, at, after.Nano()/1000)
	m.Stopping()
	require.Equal(t, "STOPPING=1", strings.Split(f.next(), "\n")[0])
	require.NoError(t, f.conn.Close())
	m.Ready() // nobody listens: no matter
}

// The watchdog gets a sign of life only when the data path has made progress.
func TestServiceManagerWatchdog(t *testing.T) {
	f := newFakeManager(t)
	f.env["WATCHDOG_USEC"], f.env["WATCHDOG_PID"] = "8000", strconv.Itoa(os.Getppid())
	m, err := NewServiceManager(f.getenv, nil)
	require.NoError(t, err)
	require.Equal(t, 8*time.Millisecond, m.watchdog)
	var beat atomic.Pointer[time.Time]
	beat.Store(new(time.Time))
	var asked atomic.Int64
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		m.Watch(ctx, func() time.Time {
			asked.Add(1)
			return *beat.Load()
		})
	}()
	require.Eventually(t, func() bool { return asked.Load() >= 5 }, patience, time.Millisecond)
	now := time.Now()
	beat.Store(&now)
	require.Equal(t, "WATCHDOG=1", f.next())
	at := asked.Load()
	require.Eventually(t, func() bool { return asked.Load() >= at+5 }, patience, time.Millisecond)
	cancel()
	<-done
	require.NoError(t, f.conn.SetReadDeadline(time.Now().Add(10*time.Millisecond)))
	_, err = f.conn.Read(make([]byte, 100))
	require.ErrorIs(t, err, os.ErrDeadlineExceeded, "a sign of life without progress")
}

func TestServiceManagerEnvironment(t *testing.T) {
	for _, env := range []map[string]string{{}, {"WATCHDOG_USEC": "1000"}} {
		m, err := NewServiceManager(func(n string) string { return env[n] }, nil)
		require.NoError(t, err)
		require.Nil(t, m)
		m.Ready()
		m.Reloading()
		m.Stopping()
		m.Watch(t.Context(), nil)
	}
	for _, env := range []map[string]string{
		{"NOTIFY_SOCKET": "vsock:2:1"},
		{"NOTIFY_SOCKET": "@x", "WATCHDOG_USEC": "soon"},
		{"NOTIFY_SOCKET": "@x", "WATCHDOG_USEC": "-1"},
	} {
		_, err := NewServiceManager(func(n string) string { return env[n] }, nil)
		require.Error(t, err, "%v", env)
	}
	env := map[string]string{"NOTIFY_SOCKET": "@x", "WATCHDOG_USEC": "1000000", "WATCHDOG_PID": "1"}
	m, err := NewServiceManager(func(n string) string { return env[n] }, nil)
	require.NoError(t, err)
	require.Zero(t, m.watchdog, "the watchdog of another process")
}
