package fdpass

import (
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/lab/leak"
)

func connections(t *testing.T) (a, b *net.UnixConn) {
	near, far, err := Pair("test")
	require.NoError(t, err)
	a, err = Conn(near)
	require.NoError(t, err)
	b, err = Conn(far)
	require.NoError(t, err)
	t.Cleanup(func() {
		_ = a.Close()
		_ = b.Close()
	})
	return a, b
}

func TestFilesArriveWithTheirPacket(t *testing.T) {
	a, b := connections(t)
	r, end, err := os.Pipe()
	require.NoError(t, err)
	defer r.Close()
	w, err := Duplicate(int(end.Fd()))
	require.NoError(t, err)
	require.NoError(t, end.Close())
	require.NoError(t, Send(a, []byte("one"), w))
	require.NoError(t, w.Close())
	require.ErrorIs(t, w.Close(), os.ErrClosed)
	require.ErrorIs(t, Send(a, []byte("one"), w), unix.EBADF)
	require.NoError(t, Send(a, []byte("two")))

	body := make([]byte, 8)
	n, fds, cut, err := Receive(b, body)
	require.NoError(t, err)
	require.NoError(t, cut)
	require.Equal(t, "one", string(body[:n]))
	require.Len(t, fds, 1)
	flags, err := unix.FcntlInt(uintptr(fds[0]), unix.F_GETFD, 0)
	require.NoError(t, err)
	require.NotZero(t, flags&unix.FD_CLOEXEC)
	_, err = unix.Write(fds[0], []byte("through"))
	require.NoError(t, err)
	CloseFDs(fds)
	got, err := io.ReadAll(r)
	require.NoError(t, err)
	require.Equal(t, "through", string(got))

	n, fds, _, err = Receive(b, body)
	require.NoError(t, err)
	require.Equal(t, "two", string(body[:n]))
	require.Empty(t, fds)

	require.NoError(t, a.Close())
	_, _, _, err = Receive(b, body)
	require.ErrorIs(t, err, io.EOF)
}

func TestWhatIsTooLongIsCut(t *testing.T) {
	a, b := connections(t)
	require.NoError(t, Send(a, []byte("too long")))
	n, fds, cut, err := Receive(b, make([]byte, 3))
	require.NoError(t, err)
	require.ErrorIs(t, cut, ErrTooLong)
	require.Equal(t, 3, n)
	require.Empty(t, fds)

	many := make([]int, MaxFiles+2)
	for i := range many {
		many[i] = int(os.Stdin.Fd())
	}
	require.NoError(t, SendFDs(a, []byte("x"), many))
	_, fds, cut, err = Receive(b, make([]byte, 3))
	require.NoError(t, err)
	require.ErrorIs(t, cut, ErrTooLong)
	require.LessOrEqual(t, len(fds), MaxFiles+1) // the buffer is padded
	CloseFDs(fds)
}

func TestConnWantsAUnixSocket(t *testing.T) {
	f, err := os.Open(os.DevNull)
	require.NoError(t, err)
	_, err = Conn(f)
	require.Error(t, err)
	require.ErrorIs(t, f.Close(), os.ErrClosed)
}

// Without descriptors for its files a packet says so, and the next one is whole.
func TestFilesNeedDescriptors(t *testing.T) {
	a, b := connections(t)
	require.NoError(t, SendFDs(a, []byte("one"), []int{0, 0, 0, 0}))
	require.NoError(t, SendFDs(a, []byte("two"), []int{0}))
	var before unix.Rlimit
	require.NoError(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &before))
	free, err := unix.Dup(0)
	require.NoError(t, err)
	require.NoError(t, unix.Close(free))
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: uint64(free) + 2, Max: before.Max}))
	body := make([]byte, 8)
	n, fds, cut, err := Receive(b, body)
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &before))
	require.NoError(t, err)
	require.ErrorIs(t, cut, ErrNoDescriptor)
	require.Equal(t, "one", string(body[:n]))
	require.Less(t, len(fds), 4)
	CloseFDs(fds)

	n, fds, cut, err = Receive(b, body)
	require.NoError(t, err)
	require.NoError(t, cut)
	require.Equal(t, "two", string(body[:n]))
	require.Len(t, fds, 1)
	CloseFDs(fds)
}

// The poller of the runtime watches no file.
func TestAFileHasNoWatcher(t *testing.T) {
	r, w, err := os.Pipe() // watched
	require.NoError(t, err)
	defer r.Close()
	defer w.Close()
	var watched, passed int
	raw, err := r.SyscallConn()
	require.NoError(t, err)
	require.NoError(t, raw.Control(func(fd uintptr) { watched = int(fd) }))
	f, err := Duplicate(watched)
	require.NoError(t, err)
	defer func() { require.NoError(t, f.Close()) }()
	passed = f.FD()
	require.True(t, polled(t, watched))
	require.False(t, polled(t, passed))
}

// polled reports whether an epoll of this process has a descriptor.
func polled(t *testing.T, fd int) (yes bool) {
	infos, err := filepath.Glob("/proc/self/fdinfo/*")
	require.NoError(t, err)
	for _, info := range infos {
		text, _ := os.ReadFile(info) // one of them was that of the list
		for line := range strings.Lines(string(text)) {
			var target int
			if n, _ := fmt.Sscanf(line, "tfd: %d", &target); n == 1 && target == fd {
				yes = true
			}
		}
	}
	return yes
}

// TestMain fails the run if a test left a goroutine or a descriptor behind.
func TestMain(m *testing.M) { os.Exit(leak.Main(m)) }
