package process

import (
	"context"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
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
}

func newFakeManager(t *testing.T) *fakeManager {
	t.Helper()
	path := filepath.Join(t.TempDir(), "notify")
	c, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	setenv(t, map[string]string{"NOTIFY_SOCKET": path})
	return &fakeManager{t: t, conn: c}
}

// setenv gives the test this environment of a service manager and no other.
func setenv(t *testing.T, env map[string]string) {
	t.Helper()
	for _, name := range []string{"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"} {
		t.Setenv(name, env[name])
	}
}

func (f *fakeManager) next() string {
	f.t.Helper()
	require.NoError(f.t, f.conn.SetReadDeadline(time.Now().Add(patience)))
	b := make([]byte, 4096)
	n, err := f.conn.Read(b)
	require.NoError(f.t, err)
	return string(b[:n])
}

// fill sends messages until no more fit the queue of the socket. Each comes from a socket of its own, whose buffer has room.
func (f *fakeManager) fill() {
	f.t.Helper()
	for {
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		require.NoError(f.t, err)
		err = unix.Sendto(fd, []byte("x"), 0, &unix.SockaddrUnix{Name: f.conn.LocalAddr().String()})
		require.NoError(f.t, unix.Close(fd))
		if err == unix.EAGAIN {
			return
		}
		require.NoError(f.t, err)
	}
}

func TestServiceManager(t *testing.T) {
	f := newFakeManager(t)
	m, err := NewServiceManager(nil)
	require.NoError(t, err)
	m.Reload()()
	m.Ready()
	require.Equal(t, "READY=1", strings.Split(f.next(), "\n")[0], "and no word of a reload within the start")
	var before, after unix.Timespec
	require.NoError(t, unix.ClockGettime(unix.CLOCK_MONOTONIC, &before))
	done := m.Reload()
	require.NoError(t, unix.ClockGettime(unix.CLOCK_MONOTONIC, &after))
	state, usec, ok := strings.Cut(f.next(), "\nMONOTONIC_USEC=")
	require.True(t, ok)
	require.Equal(t, "RELOADING=1", state)
	at, err := strconv.ParseInt(strings.TrimSpace(usec), 10, 64)
	require.NoError(t, err)
	require.GreaterOrEqual(t, at, before.Nano()/1000)
	require.LessOrEqual(t, at, after.Nano()/1000)
	done()
	require.Equal(t, "READY=1", strings.Split(f.next(), "\n")[0])
	m.Stopping()
	require.Equal(t, "STOPPING=1", strings.Split(f.next(), "\n")[0])
	require.NoError(t, f.conn.Close())
	m.Ready() // without a listener: no matter
}

// The watchdog gets a sign of life only when the data path has made progress.
func TestServiceManagerWatchdog(t *testing.T) {
	f := newFakeManager(t)
	t.Setenv("WATCHDOG_USEC", "8000")
	t.Setenv(watchdogPID, strconv.Itoa(os.Getppid()))
	m, err := NewServiceManager(nil)
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
		setenv(t, env)
		m, err := NewServiceManager(nil)
		require.NoError(t, err)
		require.Nil(t, m)
		m.Ready()
		m.Reload()()
		m.Stopping()
		m.Watch(t.Context(), nil)
	}
	for _, env := range []map[string]string{
		{"NOTIFY_SOCKET": "vsock:2:1"},
		{"NOTIFY_SOCKET": "@x", "WATCHDOG_USEC": "soon"},
		{"NOTIFY_SOCKET": "@x", "WATCHDOG_USEC": "-1"},
	} {
		setenv(t, env)
		_, err := NewServiceManager(nil)
		require.Error(t, err, "%v", env)
	}
	setenv(t, map[string]string{"NOTIFY_SOCKET": "@x", "WATCHDOG_USEC": "1000000", "WATCHDOG_PID": "1"})
	m, err := NewServiceManager(nil)
	require.NoError(t, err)
	require.Zero(t, m.watchdog, "the watchdog of another process")
}

// A manager that does not read holds up neither the gateway nor its memory.
func TestServiceManagerThatDoesNotRead(t *testing.T) {
	f := newFakeManager(t)
	m, err := NewServiceManager(nil)
	require.NoError(t, err)
	f.fill()
	m.Ready()
	before := runtime.NumGoroutine()
	start := time.Now()
	m.Ready()
	m.Ready()
	require.Less(t, time.Since(start), 10*serviceTimeout)
	for now := time.Now(); runtime.NumGoroutine() > before && time.Since(now) < patience; { // that of a timer ends soon
		time.Sleep(time.Millisecond)
	}
	require.LessOrEqual(t, runtime.NumGoroutine(), before, "a goroutine for each message")
	go func() { _, _ = io.Copy(io.Discard, f.conn) }()
	require.Eventually(t, func() bool { return len(m.sending.work) == 0 }, patience, time.Millisecond)
}
