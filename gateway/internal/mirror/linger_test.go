package mirror

import (
	"io"
	"log/slog"
	"net"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/gateway/internal/loop"
)

// fullSocket is a connection whose client's kernel is full.
type fullSocket struct {
	*testing.T
	s              *loop.Shard
	hub            *Hub
	client, server net.Conn
	written        int // by the client
	dup            int // of the client's descriptor
}

func newFullSocket(t *testing.T) *fullSocket {
	t.Helper()
	s, err := loop.New(0, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	s.Start()
	f := &fullSocket{T: t, s: s, hub: NewHub(s)}
	t.Cleanup(func() {
		f.hub.Stop()
		s.Halt()
		s.CloseFDs()
	})
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	f.client, err = net.Dial("tcp4", l.Addr().String())
	require.NoError(t, err)
	t.Cleanup(func() { _ = f.client.Close() })
	f.server, err = l.Accept()
	require.NoError(t, err)
	t.Cleanup(func() { _ = f.server.Close() })
	raw, err := f.client.(*net.TCPConn).SyscallConn()
	require.NoError(t, err)
	require.NoError(t, f.client.SetWriteDeadline(time.Now().Add(200*time.Millisecond)))
	for err = nil; err == nil; {
		var n int
		n, err = f.client.Write(make([]byte, 1<<20))
		f.written += n
	}
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	require.NoError(t, raw.Control(func(fd uintptr) {
		f.dup, err = unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0)
		require.NoError(t, err)
	}))
	return f
}

// lingers has the duplicate linger, while the client's program ends.
func (f *fullSocket) lingers(sent func(all bool)) {
	f.Helper()
	f.s.Post(func() { f.hub.linger(f.dup, new(aside), sent) })
	require.NoError(f, f.client.Close())
}

// arrives checks that the server, which sends meanwhile, gets all that was written.
func (f *fullSocket) arrives() {
	f.Helper()
	_, err := f.server.Write([]byte("a frame"))
	require.NoError(f, err)
	got, err := io.Copy(io.Discard, f.server)
	require.NoError(f, err)
	require.EqualValues(f, f.written, got)
}

// ends checks that nothing lingers any more.
func (f *fullSocket) ends() {
	f.Helper()
	require.Eventually(f, func() (none bool) {
		f.s.Call(func() { none = len(f.hub.lingering) == 0 })
		return none
	}, 10*time.Second, 10*time.Millisecond)
}

// TestLingers: what a program has written and closed reaches a slow peer that sends meanwhile.
func TestLingers(t *testing.T) {
	f := newFullSocket(t)
	require.NoError(t, unix.Shutdown(f.dup, unix.SHUT_WR))
	f.lingers(nil)
	f.arrives()
	f.ends()
}

// TestLingersForTheKilled: so does what a program has written that was killed, unless it wanted a reset.
func TestLingersForTheKilled(t *testing.T) {
	sent := make(chan bool, 1)
	f := newFullSocket(t)
	f.lingers(func(all bool) { sent <- all })
	require.Eventually(t, func() bool { // before the server reads: a socket that has nothing to send needs no FIN
		i, err := unix.GetsockoptTCPInfo(f.dup, unix.IPPROTO_TCP, unix.TCP_INFO)
		return err == nil && i.State == unix.BPF_TCP_FIN_WAIT1
	}, 10*time.Second, time.Millisecond)
	f.arrives()
	require.True(t, <-sent)
	f.ends()

	f = newFullSocket(t)
	require.NoError(t, unix.SetsockoptLinger(f.dup, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1}))
	f.lingers(func(all bool) { sent <- all })
	require.False(t, <-sent)
	_, err := io.Copy(io.Discard, f.server)
	require.ErrorIs(t, err, unix.ECONNRESET)
	f.ends()
}

// TestLooksAtMany: however many sockets linger, the shard has time for others.
func TestLooksAtMany(t *testing.T) {
	require.Equal(t, lingerLook, pause(1))
	for n := range mostLingering {
		looks := float64(n) / pause(n).Seconds()
		require.Less(t, looks, 6500.0, "%d: a second, of 3 us each", n)
	}
	require.Less(t, pause(mostLingering), time.Second)
}

// TestLingersForNoReader: a peer that writes and does not read gets a reset soon, as natively.
func TestLingersForNoReader(t *testing.T) {
	sent := make(chan bool, 1)
	f := newFullSocket(t)
	_, err := f.server.Write(make([]byte, 2*mostFrames))
	require.NoError(t, err)
	f.lingers(func(all bool) { sent <- all })
	select {
	case all := <-sent:
		require.False(t, all)
	case <-time.After(lingerTime / 2):
		t.Fatal("still lingers")
	}
	f.ends()
	_, err = io.Copy(io.Discard, f.server)
	require.ErrorIs(t, err, unix.ECONNRESET)
}
