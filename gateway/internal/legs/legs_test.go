package legs

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/ebpf/legs"
	"github.com/smcgw/smcgw/gateway/internal/host"
	"github.com/smcgw/smcgw/gateway/process"
	"github.com/smcgw/smcgw/internal/sockaddr"
	"github.com/smcgw/smcgw/lab/leak"
	"github.com/smcgw/smcgw/lab/testnet"
)

// namespace starts a keeper; it needs root.
func namespace(t *testing.T, verb string) *Namespace {
	t.Helper()
	testnet.Require(t, "root")
	conn, err := legs.Start([]string{os.Args[0], verb})
	require.NoError(t, err)
	ns, err := legs.Open(conn)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, ns.Close()) })
	return ns
}

// slowLoop is a loop that a test turns.
type slowLoop struct {
	host.Loop
	later []func()
}

func (*slowLoop) Post(fn func()) { fn() }

func (*slowLoop) Call(fn func()) { fn() }

func (*slowLoop) Watch(int, func(uint32)) error { return nil }

func (*slowLoop) Unwatch(int) {}

func (l *slowLoop) After(_ time.Duration, fn func()) (stop func()) {
	l.later = append(l.later, fn)
	return func() {}
}

// However many connections come while none can be accepted, the listener asks again
// once at a time, until there are none that wait.
func TestListenerRestsOnce(t *testing.T) {
	socket, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	defer func() { require.NoError(t, unix.Close(socket)) }()
	loop := &slowLoop{}
	l := &kernelListener{on: loop, fds: []int{socket, socket}} // accept of what does not listen fails
	for range 10 {
		l.take(socket)
		l.Arrived(func() {})
	}
	require.Len(t, loop.later, 1)
	for range 3 {
		again := loop.later[0]
		loop.later = nil
		again()
		require.Len(t, loop.later, 1)
	}
	require.NoError(t, unix.Listen(socket, 1))
	again := loop.later[0]
	loop.later = nil
	again()
	require.Empty(t, loop.later)
}

// TestListenWithoutIPv6: on a kernel without IPv6, which the keeper finds, there is one listener.
func TestListenWithoutIPv6(t *testing.T) {
	for _, verb := range []string{keeperVerb, keeper4Verb} {
		fds := [2]int{-2, -2}
		k := New(namespace(t, verb), func(v4, v6 int) error {
			fds = [2]int{v4, v6}
			return nil
		})
		l, err := k.Listen(&slowLoop{}, nil)
		require.NoError(t, err, verb)
		require.GreaterOrEqual(t, fds[0], 0)
		require.Equal(t, verb == keeperVerb, fds[1] >= 0, "%s: %v", verb, fds)
		require.NoError(t, l.Close())
		require.NoError(t, k.Close())
	}
}

// TestDialFromTakenPort: a dial from the port of the gateway's own listener finds it free. One from the tuple of another listener of
// the namespace, as a proof has for a moment, says so.
func TestDialFromTakenPort(t *testing.T) {
	ns := namespace(t, keeperVerb)
	var listening [2]int
	k := New(ns, func(v4, v6 int) error {
		listening = [2]int{v4, v6}
		return nil
	})
	l, err := k.Listen(&slowLoop{}, nil)
	require.NoError(t, err)
	for i, hosts := range [][2]string{{"192.0.2.1", "192.0.2.2"}, {"2001:db8::1", "2001:db8::2"}} {
		own, err := unix.Getsockname(listening[i])
		require.NoError(t, err)
		client := netip.AddrPortFrom(netip.MustParseAddr(hosts[0]), sockaddr.AddrPort(own).Port())
		dialled := func() error {
			result := make(chan error, 1)
			tuple := host.Tuple{Local: netip.AddrPortFrom(netip.MustParseAddr(hosts[1]), 80), Remote: client}
			k.Dial(&slowLoop{}, tuple, host.Look{}, func(_ int, err error) { result <- err })
			return <-result
		}
		require.ErrorIs(t, dialled(), unix.ENETUNREACH, "the namespace has no device: this is the error of connect()")
		other, err := ns.Sockets(i == 1, 1)
		require.NoError(t, err)
		require.NoError(t, unix.Bind(other[0], sockaddr.Of(client)))
		require.NoError(t, unix.Listen(other[0], 1))
		require.ErrorIs(t, dialled(), unix.EADDRINUSE)
		require.NoError(t, unix.Close(other[0]))
	}
	require.NoError(t, l.Close())
	require.NoError(t, k.Close())
}

// TestRecall: a dial is recalled until the application's kernel has answered. From then on
// the application may have accepted it, and its end comes.
func TestRecall(t *testing.T) {
	listener, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	defer func() { require.NoError(t, unix.Close(listener)) }()
	require.NoError(t, unix.Bind(listener, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}))
	require.NoError(t, unix.Listen(listener, 0)) // room for one
	at, err := unix.Getsockname(listener)
	require.NoError(t, err)
	dial := func() (d *kernelDial, told *bool) {
		told = new(bool)
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
		require.NoError(t, err)
		require.ErrorIs(t, unix.Connect(fd, at), unix.EINPROGRESS)
		return &kernelDial{on: &slowLoop{}, fd: fd, phase: dialConnects, stop: func() {}, done: func(fd int, err error) {
			require.NoError(t, err)
			require.NoError(t, unix.Close(fd))
			*told = true
		}}, told
	}
	made, told := dial()
	_, err = unix.Poll([]unix.PollFd{{Fd: int32(made.fd), Events: unix.POLLOUT}}, 30_000) // until the kernel has answered
	require.True(t, err == nil || err == unix.EINTR, err)
	require.False(t, made.Recall())
	made.event(0)
	require.True(t, *told)

	waits, told := dial() // the kernel has no room, and says nothing
	require.True(t, waits.Recall())
	require.Equal(t, -1, waits.fd)
	require.False(t, *told)

	early := &kernelDial{fd: -1, stop: func() {}}
	require.True(t, early.Recall())
	require.Equal(t, dialOver, early.phase)
}

func TestDeathNote(t *testing.T) {
	at := time.Date(2026, 11, 30, 1, 2, 3, 0, time.UTC)
	require.Equal(t, "legs: the process smcgw-legs has ended, once since the start, at 2026-11-30T01:02:03Z last, and its spare has taken its place", deathNote(1, at))
	require.Contains(t, deathNote(2, at), "2 times since the start")
}

// keeperVerb makes this program a keeper of legs, and keeper4Verb one whose kernel has no IPv6.
const (
	keeperVerb  = "keep-legs"
	keeper4Verb = "keep-legs-without-ipv6"
)

// TestMain fails the run if a test left a goroutine or a descriptor behind.
func TestMain(m *testing.M) {
	if len(os.Args) != 2 || os.Args[1] != keeperVerb && os.Args[1] != keeper4Verb {
		os.Exit(leak.Main(m))
	}
	var err error
	if os.Args[1] == keeper4Verb {
		err = loseIPv6()
	}
	if err == nil {
		err = legs.Serve(nil)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// pipes makes descriptors as a keeper makes sockets.
func pipes(t *testing.T) (func(int) ([]int, error), *atomic.Int64) {
	t.Helper()
	made := new(atomic.Int64)
	return func(count int) (fds []int, err error) {
		for range count {
			fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
			if err != nil {
				return fds, err
			}
			fds = append(fds, fd)
		}
		made.Add(int64(count))
		return fds, nil
	}, made
}

// Every caller gets a socket of its own, above the floor, and what is left is closed.
func TestLegPool(t *testing.T) {
	const asked = 5 * process.LegBatch
	maker, made := pipes(t)
	p := &legPool{make: maker}
	got := make(chan int, asked)
	for range asked {
		p.take(func(fd int, err error) {
			require.NoError(t, err)
			got <- fd
		})
	}
	seen := map[int]bool{}
	for range asked {
		fd := <-got
		require.False(t, seen[fd])
		require.GreaterOrEqual(t, fd, process.LegFloor)
		seen[fd] = true
	}
	require.Eventually(t, func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return !p.filling && len(p.ready) >= legLow
	}, 30*time.Second, time.Millisecond)
	require.LessOrEqual(t, made.Load(), int64(asked+2*process.LegBatch), "no more than are wanted soon")
	for fd := range seen {
		require.NoError(t, unix.Close(fd))
	}
	require.NoError(t, p.close())
	failed := make(chan error, 1)
	p.take(func(_ int, err error) { failed <- err })
	require.Error(t, <-failed)
}

// A waiting caller hears of a keeper that fails, and the next one asks again.
func TestLegPoolFails(t *testing.T) {
	maker, _ := pipes(t)
	broken := errors.New("broken")
	var fail atomic.Bool
	fail.Store(true)
	p := &legPool{make: func(n int) ([]int, error) {
		if fail.Load() {
			return nil, broken
		}
		return maker(n)
	}}
	results := make(chan error, 3)
	use := func(fd int, err error) {
		if err == nil {
			_ = unix.Close(fd)
		}
		results <- err
	}
	p.take(use)
	require.ErrorIs(t, <-results, broken)
	fail.Store(false)
	require.Eventually(t, func() bool {
		p.take(use)
		return <-results == nil
	}, 30*time.Second, time.Millisecond)
	require.Eventually(t, func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return !p.filling
	}, 30*time.Second, time.Millisecond)
	require.NoError(t, p.close())
}
