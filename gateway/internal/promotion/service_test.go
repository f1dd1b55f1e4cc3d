package promotion

import (
	"encoding/binary"
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
	"github.com/smcgw/smcgw/inprocess"
	"github.com/smcgw/smcgw/inprocess/broker"
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

// TestConnsAreListedOnce: one that went back for good is in the slab of its program and among the last that did; those have it
// when the program is gone, and when nobody is served any more.
func TestConnsAreListedOnce(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	s := newService(t, path)
	s.Serve(true)
	require.Eventually(t, func() bool { return s.Serving() == nil && answers(path) }, 30*time.Second, time.Millisecond)
	slab, err := unix.MemfdCreate("slab", unix.MFD_CLOEXEC)
	require.NoError(t, err)
	defer unix.Close(slab)
	entry := make([]byte, inprocess.EntrySize)
	binary.NativeEndian.PutUint32(entry[inprocess.ReportState:], uint32(inprocess.StateNever))
	binary.NativeEndian.PutUint32(entry[inprocess.ReportWhy:], uint32(inprocess.WhyOption))
	binary.NativeEndian.PutUint64(entry[inprocess.ReportCookie:], 7)
	_, err = unix.Write(slab, entry)
	require.NoError(t, err)
	c, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: path, Net: "unixpacket"})
	require.NoError(t, err)
	defer c.Close()
	_, _, err = c.WriteMsgUnix(inprocess.Record{What: inprocess.Hello, A: inprocess.Version, B: 1}.Append(nil), unix.UnixRights(slab), nil)
	require.NoError(t, err)
	all := report.ConnQuery{All: true}
	require.Eventually(t, func() bool { return len(s.Conns(all)) == 1 }, 30*time.Second, time.Millisecond)
	s.tell(broker.ToldEnded, broker.End{Socket: broker.Socket{Cookie: 7}}, inprocess.WhyOption)
	require.Len(t, s.Conns(all), 1)
	require.NoError(t, c.Close())
	require.Eventually(t, func() bool { return s.Totals(false).Processes == 0 }, 30*time.Second, time.Millisecond)
	require.Len(t, s.Conns(all), 1)
	s.Serve(false)
	require.Len(t, s.Conns(all), 1)
}
