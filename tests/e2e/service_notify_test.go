package e2e

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/lab/testnet"
)

// manager is the notification socket of a service manager.
type manager struct {
	t    *testing.T
	conn *net.UnixConn
}

// await reads messages until one has this prefix.
func (m *manager) await(begins string) {
	m.t.Helper()
	require.NoError(m.t, m.conn.SetReadDeadline(time.Now().Add(30*time.Second)))
	for b := make([]byte, 4096); ; {
		n, err := m.conn.Read(b)
		require.NoError(m.t, err, "no %s", begins)
		if strings.HasPrefix(string(b[:n]), begins) {
			return
		}
	}
}

// silent reads what is there, then requires that no message comes for a while.
func (m *manager) silent(d time.Duration) {
	m.t.Helper()
	b := make([]byte, 4096)
	for quiet := time.Now().Add(d / 2); time.Now().Before(quiet); { // skip what was under way
		_ = m.conn.SetReadDeadline(quiet)
		_, _ = m.conn.Read(b)
	}
	_ = m.conn.SetReadDeadline(time.Now().Add(d))
	n, err := m.conn.Read(b)
	require.ErrorIs(m.t, err, os.ErrDeadlineExceeded, "%s", b[:n])
}

// TestServiceNotify checks that the service manager is told when the gateway handles connections, reloads and stops,
// and that it lives, but not that a hanging one does while its guardian still lives.
func TestServiceNotify(t *testing.T) {
	w := newWorld(t, testnet.Config{})
	path := filepath.Join(w.dir, "notify")
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	m := &manager{t, conn}
	w.program = filepath.Join(w.dir, "managed")
	require.NoError(t, os.WriteFile(w.program, fmt.Appendf(nil,
		"#!/bin/sh\nexport NOTIFY_SOCKET=%s WATCHDOG_USEC=400000 WATCHDOG_PID=$$\nexec %s \"$@\"\n", path, binary), 0o700))

	g := w.launch(w.h1, settings{})
	m.await("READY=1")
	g.ready()
	m.await("WATCHDOG=1")
	m.await("WATCHDOG=1")
	g.signal(g.proc.Pid(), syscall.SIGHUP)
	m.await("RELOADING=1\nMONOTONIC_USEC=")
	m.await("READY=1")
	g.stop()
	m.await("STOPPING=1")

	g = w.up(w.h1, settings{})
	m.await("WATCHDOG=1")
	g.frozen(func() { m.silent(time.Second) })
	m.await("WATCHDOG=1")
	g.stop()
}
