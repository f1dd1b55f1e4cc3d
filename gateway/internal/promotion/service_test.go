package promotion

import (
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/ebpf"
	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/report"
)

func newService(t *testing.T, path string) *Service {
	t.Helper()
	c := config.Config{Policy: []config.Rule{{Action: report.ActionAccelerate}}}.WithDefaults()
	c.InProcess.Socket = path
	s := New(c, Options{Log: slog.New(slog.DiscardHandler)})
	s.Set(c, report.ModeEnforce, ebpf.ShareAll)
	t.Cleanup(s.Close)
	return s
}

func answers(path string) bool {
	c, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: path, Net: "unixpacket"})
	if err == nil {
		_ = c.Close()
	}
	return err == nil
}

// TestSocketChangesHands: one of two has it, the other one gets it when that gives it up, and nothing is left behind.
func TestSocketChangesHands(t *testing.T) {
	defer unix.Umask(unix.Umask(0o077))
	path := filepath.Join(t.TempDir(), "none", "s")
	a, b := newService(t, path), newService(t, path)
	require.Error(t, a.Serving())
	a.Serve(true)
	a.Serve(true)
	require.Eventually(t, func() bool { return a.Serving() == nil && answers(path) }, 30*time.Second, time.Millisecond)
	b.Serve(true)
	require.Eventually(t, func() bool { return b.Serving() != nil }, 30*time.Second, time.Millisecond)
	fi, err := os.Stat(path)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(socketMode), fi.Mode().Perm())
	fi, err = os.Stat(filepath.Dir(path))
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o755), fi.Mode().Perm(), "no package has made it")
	require.NoError(t, Remove(path))
	require.True(t, answers(path), "a socket that is served stays")
	a.Serve(false)
	require.Eventually(t, func() bool { return b.Serving() == nil && answers(path) }, 30*time.Second, time.Millisecond)
	total := a.Totals(true)
	require.True(t, total.Enabled)
	require.False(t, total.Serving)
	require.NotEmpty(t, total.Note)
	b.Close()
	b.Serve(true) // it is closed
	require.NoFileExists(t, path)
}

// TestSocketIsLost: one that was removed is made again, and one that is another's stays.
func TestSocketIsLost(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	a, b := newService(t, path), newService(t, path)
	a.Serve(true)
	serves := func(s *Service) func() bool { return func() bool { return s.Serving() == nil && answers(path) } }
	require.Eventually(t, serves(a), 30*time.Second, time.Millisecond)
	require.NoError(t, os.Remove(path))
	require.Eventually(t, serves(a), 30*time.Second, time.Millisecond)

	require.NoError(t, os.Remove(path))
	b.Serve(true)
	require.Eventually(t, serves(b), 30*time.Second, time.Millisecond)
	a.Serve(false)
	require.True(t, answers(path), "the end of one that has lost its socket")
	b.Close()
	require.NoFileExists(t, path)
}

// TestRemoveDead: a socket that a daemon left which was killed is removed.
func TestRemoveDead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	require.NoError(t, Remove(path))
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: path, Net: "unixpacket"})
	require.NoError(t, err)
	l.SetUnlinkOnClose(false)
	require.NoError(t, l.Close())
	require.FileExists(t, path)
	require.NoError(t, Remove(path))
	require.NoFileExists(t, path)
}

// TestConfiguredAway: without it there is nothing, and nothing to call.
func TestConfiguredAway(t *testing.T) {
	c := config.Config{InProcess: config.InProcess{Enabled: config.SwitchOff}}.WithDefaults()
	s := New(c, Options{})
	require.Nil(t, s)
	s.Serve(true)
	s.Set(c, report.ModeEnforce, ebpf.ShareAll)
	s.Share(ebpf.ShareAll)
	require.False(t, s.Totals(true).Enabled)
	s.Close()
}
