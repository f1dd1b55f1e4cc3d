package legs

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/internal/fdpass"
	"github.com/smcgw/smcgw/internal/procfs"
	"github.com/smcgw/smcgw/lab/testnet"
)

// keeperVerb makes this program a keeper, spareVerb its spare, and possibleVerb one that asks.
const (
	keeperVerb   = "keep-legs"
	spareVerb    = "spare-legs"
	possibleVerb = "possible"
)

func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == spareVerb {
		if err := Stand([]string{os.Args[0], keeperVerb}); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if len(os.Args) == 2 && os.Args[1] == keeperVerb {
		if err := Serve([]string{os.Args[0], spareVerb}); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if len(os.Args) == 2 && os.Args[1] == possibleVerb {
		if err := Possible(); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

// TestPossible: a namespace takes CAP_SYS_ADMIN or a host that permits user namespaces.
func TestPossible(t *testing.T) {
	testnet.Require(t, "root")
	self, err := os.Executable()
	require.NoError(t, err)
	const none, without = "echo 0 >/proc/sys/user/max_user_namespaces; ", "exec setpriv --inh-caps -sys_admin --bounding-set -sys_admin "
	for _, test := range []struct {
		host     string
		possible bool
	}{{"exec ", true}, {none + "exec ", true}, {without, true}, {none + without, false}} {
		c := exec.Command("unshare", "-Ur", "sh", "-c", test.host+self+" "+possibleVerb)
		said, err := c.CombinedOutput()
		require.Equal(t, test.possible, err == nil, "%s: %s", test.host, said)
		if !test.possible {
			require.Contains(t, string(said), ErrKeeper.Error())
		}
	}
}

// newNamespace starts a keeper; it needs root.
func newNamespace(t *testing.T) *Namespace {
	t.Helper()
	testnet.Require(t, "root")
	conn, err := Start([]string{os.Args[0], keeperVerb})
	require.NoError(t, err)
	n, err := Open(conn)
	require.NoError(t, err)
	t.Cleanup(func() { _ = n.Close() })
	return n
}

// pair makes a device whose other end is in the namespace, and sets that up.
func (n *Namespace) pair(t *testing.T) (index int, name string) {
	t.Helper()
	name = fmt.Sprintf("lt%d", os.Getpid()%1e6)
	link := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name}, PeerName: "leg", PeerNamespace: netlink.NsFd(int(n.File().Fd()))}
	onThread(t, func() {
		fresh, err := netns.New()
		require.NoError(t, err)
		t.Cleanup(func() { _ = fresh.Close() })
		require.NoError(t, netlink.LinkAdd(link))
	})
	index, err := n.Device("leg", 65535, net.HardwareAddr{2, 0, 0, 0, 0, 1}, map[string]string{"ipv4/tcp_rmem": "4096 65536 131072"})
	require.NoError(t, err)
	return index, name
}

// TestSignals: the keeper ends with its gateway, and not by a signal that all processes of that get.
func TestSignals(t *testing.T) {
	before := procfs.Children(os.Getpid()) // keepers of other tests may be ending
	n := newNamespace(t)
	keepers := slices.DeleteFunc(procfs.Children(os.Getpid()), func(pid int) bool {
		line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		return slices.Contains(before, pid) || !strings.Contains(string(line), keeperVerb)
	})
	require.Len(t, keepers, 1)
	for _, s := range []unix.Signal{unix.SIGHUP, unix.SIGINT, unix.SIGTERM} {
		require.NoError(t, unix.Kill(keepers[0], s))
		fds, err := n.Sockets(false, 1)
		require.NoError(t, err, "%v", s)
		fdpass.CloseFDs(fds)
	}
	require.NoError(t, n.Close())
	require.Eventually(t, func() bool {
		return errors.Is(unix.Kill(keepers[0], 0), unix.ESRCH) || procfs.StatOf(keepers[0]).State() == "Z"
	}, 30*time.Second, time.Millisecond)
}

// onThread runs fn on a thread that dies afterwards.
func onThread(t *testing.T, fn func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		fn()
	}()
	<-done
}

// A leg has any address and any port, and a privileged one, without a privilege of
// the process that binds it; two of them talk to each other through nothing but
// the pair.
func TestSockets(t *testing.T) {
	n := newNamespace(t)
	index, _ := n.pair(t)
	require.Positive(t, index)
	for _, v6 := range []bool{false, true} {
		fds, err := n.Sockets(v6, 3)
		require.NoError(t, err)
		require.Len(t, fds, 3)
		var sa unix.Sockaddr = &unix.SockaddrInet4{Addr: [4]byte{203, 0, 113, 9}, Port: 80}
		if v6 {
			sa = &unix.SockaddrInet6{Addr: [16]byte{0x20, 1, 0xd, 0xb8, 15: 9}, Port: 80}
		}
		for i, fd := range fds {
			linger, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_LINGER)
			require.NoError(t, err)
			require.Equal(t, 1, linger, "a close resets")
			flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
			require.NoError(t, err)
			require.NotZero(t, flags&unix.O_NONBLOCK)
			cloexec, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
			require.NoError(t, err)
			require.Equal(t, unix.FD_CLOEXEC, cloexec)
			if i == 0 {
				require.NoError(t, unix.Bind(fd, sa))
				require.NoError(t, unix.Listen(fd, 1))
			}
		}
		fdpass.CloseFDs(fds)
	}
}

// TestIPv6Off: a host whose new namespaces have IPv6 off, as one that was booted with ipv6.disable_ipv6=1, has legs of both families.
func TestIPv6Off(t *testing.T) {
	n := newNamespace(t)
	inside := func(do func()) {
		onThread(t, func() {
			require.NoError(t, netns.Set(netns.NsHandle(n.File().Fd())))
			do()
		})
	}
	inside(func() {
		for _, device := range []string{"all", "default", "lo"} {
			require.NoError(t, os.WriteFile("/proc/sys/net/ipv6/conf/"+device+"/disable_ipv6", []byte("1"), 0))
		}
	})
	index, _ := n.pair(t)
	inside(func() {
		for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
			local, err := netlink.RouteListFiltered(family, &netlink.Route{Table: table, Type: unix.RTN_LOCAL}, netlink.RT_FILTER_TABLE|netlink.RT_FILTER_TYPE)
			require.NoError(t, err)
			require.Len(t, local, 1, "family %d", family)
			out, err := netlink.RouteListFiltered(family, &netlink.Route{LinkIndex: index, Dst: nil}, netlink.RT_FILTER_OIF|netlink.RT_FILTER_DST)
			require.NoError(t, err)
			require.Len(t, out, 1, "family %d", family)
		}
	})
}

// What makes no sense is refused, and the keeper goes on.
func TestRefused(t *testing.T) {
	n := newNamespace(t)
	for _, count := range []int{0, -1, MaxSockets + 1} {
		_, err := n.Sockets(false, count)
		require.ErrorIs(t, err, ErrKeeper)
	}
	for _, name := range []string{"none", "../x", ".", ""} {
		_, err := n.Device(name, 1500, net.HardwareAddr{2, 0, 0, 0, 0, 1}, nil)
		require.ErrorIs(t, err, ErrKeeper, name)
	}
	_, fds, err := n.ask(message{op: '?', body: []byte("what")})
	require.ErrorIs(t, err, ErrKeeper)
	require.Empty(t, fds)
	_, fds, err = n.ask(message{op: opSockets, body: []byte("{")})
	require.ErrorIs(t, err, ErrKeeper)
	require.Empty(t, fds)
	fds, err = n.Sockets(false, MaxSockets)
	require.NoError(t, err)
	require.Len(t, fds, MaxSockets)
	fdpass.CloseFDs(fds)
	require.True(t, n.Alive())
}

// Requests of many at once are answered each by itself.
func TestConcurrentRequests(t *testing.T) {
	n := newNamespace(t)
	results := make(chan error, 16)
	for i := range cap(results) {
		go func() {
			fds, err := n.Sockets(i%2 == 0, i+1)
			if err == nil && len(fds) != i+1 {
				err = fmt.Errorf("%d sockets instead of %d", len(fds), i+1)
			}
			fdpass.CloseFDs(fds)
			results <- err
		}()
	}
	for range cap(results) {
		require.NoError(t, <-results)
	}
}

// A keeper that is gone is noticed at once, by a look and by a request.
func TestKeeperGone(t *testing.T) {
	n := newNamespace(t)
	require.True(t, n.Alive())
	require.NoError(t, unix.Kill(keeperOf(t, n), unix.SIGKILL))
	require.Eventually(t, func() bool { return !n.Alive() }, 30*time.Second, 5*time.Millisecond)
	_, err := n.Sockets(false, 1)
	require.ErrorIs(t, err, ErrKeeper)
}

// A keeper is there whatever signals the runtime sends its threads: a look that one
// interrupts must not find it gone, which nothing would ever take back.
func TestAliveWhenInterrupted(t *testing.T) {
	n := newNamespace(t)
	onThread(t, func() {
		tid, stop, stopped := unix.Gettid(), make(chan struct{}), make(chan struct{})
		go func() {
			defer close(stopped)
			for {
				select {
				case <-stop:
					return
				default:
					_ = unix.Tgkill(os.Getpid(), tid, unix.SIGURG) // as for preemption
				}
			}
		}()
		for end := time.Now().Add(300 * time.Millisecond); time.Now().Before(end); {
			if !n.Alive() {
				t.Error("the keeper is there")
				break
			}
		}
		close(stop)
		<-stopped
	})
}

// keeperOf finds the process that lives in the namespace.
func keeperOf(t *testing.T, n *Namespace) int {
	t.Helper()
	pids := processesOf(t, n)
	require.Len(t, pids, 1)
	return pids[0]
}

// stopped reports that every thread of the process stands still, which each does in its own time.
func stopped(t *testing.T, pid int) bool {
	t.Helper()
	tasks := fmt.Sprintf("/proc/%d/task", pid)
	entries, err := os.ReadDir(tasks)
	require.NoError(t, err)
	return !slices.ContainsFunc(entries, func(e os.DirEntry) bool {
		return procfs.StatIn(filepath.Join(tasks, e.Name())).State() != "T"
	})
}

// processesOf finds the processes that live in the namespace.
func processesOf(t *testing.T, n *Namespace) (pids []int) {
	t.Helper()
	var want unix.Stat_t
	require.NoError(t, unix.Fstat(int(n.File().Fd()), &want))
	entries, err := os.ReadDir("/proc")
	require.NoError(t, err)
	for _, e := range entries {
		var pid int
		var have unix.Stat_t
		if _, err := fmt.Sscan(e.Name(), &pid); err != nil {
			continue
		}
		if unix.Stat(fmt.Sprintf("/proc/%d/ns/net", pid), &have) == nil && have.Ino == want.Ino {
			pids = append(pids, pid)
		}
	}
	return pids
}

// The namespace ends with its last holder, and the pair with it.
func TestNothingIsLeft(t *testing.T) {
	n := newNamespace(t)
	fds, err := n.Sockets(false, 1)
	require.NoError(t, err)
	_, name := n.pair(t)
	require.NotEmpty(t, name)
	pid := keeperOf(t, n)
	require.NoError(t, n.Close())
	require.Eventually(t, func() bool { return errors.Is(unix.Kill(pid, 0), unix.ESRCH) || procfs.StatOf(pid).State() == "Z" }, 30*time.Second, 5*time.Millisecond)
	fdpass.CloseFDs(fds)
}

// A gateway without descriptors gets no sockets, and asks again later: what did not
// arrive says nothing about the keeper.
func TestNoDescriptors(t *testing.T) {
	n := newNamespace(t)
	var before unix.Rlimit
	require.NoError(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &before))
	probe, err := unix.Dup(0)
	require.NoError(t, err)
	require.NoError(t, unix.Close(probe))
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: uint64(probe) + 3, Max: before.Max}))
	_, err = n.Sockets(false, 32)
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &before))
	require.ErrorIs(t, err, unix.EMFILE)
	free, err := unix.Dup(0)
	require.NoError(t, err)
	require.NoError(t, unix.Close(free))
	require.Equal(t, probe, free, "what arrived is closed")

	require.True(t, n.Alive())
	fds, err := n.Sockets(false, 32)
	require.NoError(t, err)
	require.Len(t, fds, 32)
	fdpass.CloseFDs(fds)
}

// What a keeper lacks is told by the kernel's error, so that the gateway can tell descriptors from memory, and a kernel without a
// family from a keeper that fails.
func TestKeeperLacks(t *testing.T) {
	n := newNamespace(t)
	keeper := keeperOf(t, n)
	var before unix.Rlimit
	require.NoError(t, unix.Prlimit(keeper, unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 0, Max: 1 << 10}, &before))
	_, err := n.Sockets(false, 1)
	require.ErrorIs(t, err, unix.EMFILE)
	require.ErrorIs(t, err, ErrKeeper)
	require.Contains(t, err.Error(), "gateway socket")
	_, err = n.Sockets(false, 0)
	require.ErrorIs(t, err, ErrKeeper)
	require.Contains(t, err.Error(), "0 sockets")
	require.True(t, n.Alive())
}

// Files that cannot be sent are a request that fails, and not the keeper's end.
func TestFilesCannotBeSent(t *testing.T) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	var ends [2]*net.UnixConn
	for i, fd := range fds {
		ends[i], err = controlConn(os.NewFile(uintptr(fd), "end"))
		require.NoError(t, err)
		defer ends[i].Close()
	}
	gone, err := fdpass.Duplicate(0)
	require.NoError(t, err)
	require.NoError(t, gone.Close())
	require.NoError(t, sendOrSay(ends[0], message{op: answerDone, files: []*fdpass.File{gone}}))
	m, files, err := receive(ends[1])
	require.NoError(t, err)
	require.Empty(t, files)
	require.Equal(t, byte(answerFailed), m.op)
	require.NotEmpty(t, m.body)
	require.NoError(t, ends[1].Close())
	require.Error(t, sendOrSay(ends[0], message{op: answerDone, files: []*fdpass.File{gone}}))
}

// A keeper that takes too long for an answer is late, and there again when it has
// answered: what comes for a request that was given up is not taken for another one's.
func TestKeeperLate(t *testing.T) {
	n := newNamespace(t)
	n.keeper.patience = 50 * time.Millisecond
	keeper := keeperOf(t, n)
	require.NoError(t, unix.Kill(keeper, unix.SIGSTOP))
	t.Cleanup(func() { _ = unix.Kill(keeper, unix.SIGCONT) })
	require.Eventually(t, func() bool { return stopped(t, keeper) }, 30*time.Second, time.Millisecond)
	for range 2 { // the second does not get as far as being sent
		_, err := n.Sockets(false, 1)
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	}
	require.Eventually(t, func() bool { return !n.Alive() }, 30*time.Second, 5*time.Millisecond)

	require.NoError(t, unix.Kill(keeper, unix.SIGCONT))
	require.Eventually(t, n.Alive, 30*time.Second, 5*time.Millisecond, "without another request")
	n.keeper.patience = patience
	fds, err := n.Sockets(true, 3)
	require.NoError(t, err)
	require.Len(t, fds, 3)
	for _, fd := range fds {
		domain, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DOMAIN)
		require.NoError(t, err)
		require.Equal(t, unix.AF_INET6, domain)
	}
	fdpass.CloseFDs(fds)
	require.True(t, n.Alive())
}
