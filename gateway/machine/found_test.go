package machine

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/admin"
	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/lab/leak"
	"github.com/smcgw/smcgw/lab/testnet"
)

// roleVariable says what a process is that a test looks for, socketVariable where it has
// its socket.
const (
	roleVariable   = "SMCGW_TEST_ROLE"
	socketVariable = "SMCGW_TEST_SOCKET"
)

// deviceless controls a gateway without devices, as one that observes is.
type deviceless struct{ admin.Control }

func (deviceless) SetOff(bool) error { return nil }

// play is such a process until its standard input ends.
func play(role string) int {
	at := os.Getenv(socketVariable)
	stop := func() {}
	var err error
	switch role {
	case "answers":
		stop, err = answer(at)
	case "chroot":
		if err = syscall.Chroot(filepath.Dir(at)); err == nil {
			stop, err = answer("/" + filepath.Base(at))
		}
	case "silent": // listens as an admin socket does
		if _, err = net.Listen("unix", at+config.NewSuffix); err == nil {
			err = os.Rename(at+config.NewSuffix, at)
		}
	case "guards":
		c := &exec.Cmd{Path: "/proc/self/exe", Args: os.Args, Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr}
		c.Env = append(os.Environ(), roleVariable+"=silent")
		if err = c.Run(); err == nil {
			return 0
		}
	}
	if err != nil {
		fmt.Println(err)
		return 1
	}
	fmt.Println(os.Getpid())
	_, _ = io.Copy(io.Discard, os.Stdin)
	stop()
	return 0
}

// answer serves an admin socket until stop is called.
func answer(at string) (stop func(), err error) {
	s, err := admin.Listen(config.Config{Admin: at, StateDir: filepath.Dir(at)}.WithDefaults(), "9.9.9", nil)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = s.Serve(ctx, deviceless{}, nil)
	}()
	return func() {
		cancel()
		<-served
	}, nil
}

// player is a process that plays a role.
type player struct {
	pid    int // of the one that has the socket
	first  int // that was started
	socket string
}

// start has a process of another network namespace play a role with a command line.
func start(t *testing.T, role string, change func(*exec.Cmd), args ...string) player {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, os.Chmod(filepath.Dir(dir), 0o755)) // for other users
	require.NoError(t, os.Chmod(dir, 0o777))
	p := player{socket: dir + "/s"}
	c := &exec.Cmd{Path: "/proc/self/exe", Args: args, Stderr: os.Stderr, SysProcAttr: &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}}
	c.Env = append(os.Environ(), roleVariable+"="+role, socketVariable+"="+p.socket)
	if change != nil {
		change(c)
	}
	end, err := c.StdinPipe()
	require.NoError(t, err)
	out, err := c.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, c.Start())
	t.Cleanup(func() {
		require.NoError(t, end.Close())
		require.NoError(t, c.Wait())
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	p.pid, err = strconv.Atoi(strings.TrimSpace(line))
	require.NoError(t, err, line)
	p.first = c.Process.Pid
	return p
}

// found lists the gateways of some processes.
func found(t *testing.T, pids ...int) (list []Found) {
	t.Helper()
	all, err := Find(t.Context())
	require.NoError(t, err)
	for _, f := range all {
		for _, pid := range pids {
			if f.PID == pid {
				list = append(list, f)
			}
		}
	}
	return list
}

// namespaceOf names the network namespace of a process.
func namespaceOf(t *testing.T, pid int) string {
	t.Helper()
	ns, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/net", pid))
	require.NoError(t, err)
	return ns
}

// TestFindWithoutDevices: gateways that observe or are off have no devices. They are found
// by their admin sockets, wherever those are, also when they drain.
func TestFindWithoutDevices(t *testing.T) {
	testnet.Require(t, "root")
	a := start(t, "answers", nil, "smcgw", "up")
	other := start(t, "answers", nil, "a-renamed-program", "up")
	inside := start(t, "chroot", nil, "smcgw", "up")
	require.ElementsMatch(t, []Found{
		{PID: a.pid, Namespace: namespaceOf(t, a.pid), Path: a.socket, Socket: a.socket},
		{PID: other.pid, Namespace: namespaceOf(t, other.pid), Path: other.socket, Socket: other.socket},
		{PID: inside.pid, Namespace: namespaceOf(t, inside.pid), Path: "/s", Socket: fmt.Sprintf("/proc/%d/root/s", inside.pid)},
	}, found(t, a.pid, other.pid, inside.pid))

	require.NoError(t, os.Rename(a.socket, a.socket+config.DrainingSuffix))
	list := found(t, a.pid)
	require.Len(t, list, 1)
	require.Equal(t, a.socket+config.DrainingSuffix, list[0].Path)
	require.NoError(t, os.Rename(a.socket+config.DrainingSuffix, a.socket))
}

// TestFindSilent: gateways that do not answer are in the list once each, and are waited for
// at the same time.
func TestFindSilent(t *testing.T) {
	testnet.Require(t, "root")
	var want []Found
	var pids []int
	for range 3 {
		p := start(t, "guards", nil, "smcgw", "up")
		require.NotEqual(t, p.first, p.pid)
		want = append(want, Found{PID: p.pid, Namespace: namespaceOf(t, p.pid)})
		pids = append(pids, p.first, p.pid)
	}
	var took time.Duration
	for range 5 { // until the machine is fast enough to tell
		begun := time.Now()
		require.ElementsMatch(t, want, found(t, pids...))
		if took = time.Since(begun); took < 2*answerPatience {
			return
		}
	}
	require.Fail(t, "they are waited for in turn", "%v", took)
}

// TestFindNothingElse: other verbs, other programs and processes without privileges are no
// gateways, whatever sockets they have.
func TestFindNothingElse(t *testing.T) {
	testnet.Require(t, "root")
	unprivileged := func(c *exec.Cmd) { c.SysProcAttr.Credential = &syscall.Credential{Uid: 65534, Gid: 65534} }
	userns := func(c *exec.Cmd) {
		c.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
		c.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{Size: 1}}
		c.SysProcAttr.GidMappings = c.SysProcAttr.UidMappings
	}
	var pids []int
	for _, p := range []player{
		start(t, "client", nil, "smcgw", "status"),
		start(t, "client", nil, "smcgw", "up"),
		start(t, "silent", nil, "smcgw", "status"),
		start(t, "silent", nil, "other", "up"),
		start(t, "silent", unprivileged, "smcgw", "up"),
		start(t, "answers", unprivileged, "smcgw", "up"),
		start(t, "answers", userns, "smcgw", "up"),
	} {
		pids = append(pids, p.pid)
	}
	require.Empty(t, found(t, pids...))
}

// TestFindOnceWithChildren: a process that has the socket of a gateway that answers, as a
// child has before its program begins, is not another one.
func TestFindOnceWithChildren(t *testing.T) {
	testnet.Require(t, "root")
	child := start(t, "silent", nil, "smcgw", "up")
	gateway := Found{PID: os.Getpid()}
	p := &suspect{pid: child.pid, sockets: []string{"8"}}
	suspects := []*suspect{p, {pid: gateway.PID, sockets: []string{"7", "8"}, found: gateway, answers: true}}
	require.Equal(t, []Found{gateway}, gatewaysOf(suspects, nil))
	p.sockets = []string{"9"}
	require.Equal(t, []Found{gateway, {PID: child.pid}}, gatewaysOf(suspects, nil))
}

// TestListening reads lines as the kernel writes them.
func TestListening(t *testing.T) {
	const table = "Num       RefCount Protocol Flags    Type St Inode Path\n" +
		"0000000000000000: 00000002 00000000 00010000 0001 01    11 /run/a.sock.new\n" +
		"0000000000000000: 00000002 00000000 00010000 0001 01 12345 /run/with space/b.sock.new\n" +
		"0000000000000000: 00000003 00000000 00000000 0001 03    13 /run/a.sock.new\n" + // accepted
		"0000000000000000: 00000002 00000000 00010000 0005 01    14 /run/c.sock.new\n" + // SOCK_SEQPACKET
		"0000000000000000: 00000002 00000000 00010000 0001 01    15 @/abstract.new\n" +
		"0000000000000000: 00000002 00000000 00010000 0001 01    16 relative.new\n" +
		"0000000000000000: 00000002 00000000 00010000 0001 01    17 /run/other.sock\n" +
		"0000000000000000: 00000002 00000000 00000000 0002 01    18\n"
	require.Equal(t, adminSockets{"11": "/run/a.sock", "12345": "/run/with space/b.sock"}, listening([]byte(table)))
	for i := range table {
		listening([]byte(table[:i]))
	}
}

// TestTell: what gateways say and which were missed is in the order of the list. One that is just ending is not missed.
func TestTell(t *testing.T) {
	ending := exec.Command("sleep", "0.2")
	require.NoError(t, ending.Start())
	defer func() { _ = ending.Wait() }()
	self := os.Getpid()
	list := []Found{
		{PID: 1, Here: true, Socket: "a"}, {PID: self, Here: true}, {PID: 3, Here: true, Socket: "b"}, {PID: 4, Here: true, Socket: "c"},
		{PID: ending.Process.Pid, Here: true},
	}
	first := make(chan struct{})
	turns := make(chan int, 3)
	for i := range 3 {
		turns <- i
	}
	said, missed := Tell(t.Context(), list, time.Minute, func(ctx context.Context, _ *admin.Client) (admin.Result, error) {
		deadline, bounded := ctx.Deadline()
		if !bounded || time.Until(deadline) < 30*time.Second {
			return admin.Result{}, context.DeadlineExceeded
		}
		if <-turns == 2 { // all are told before one has answered
			close(first)
		}
		<-first
		return admin.Result{Message: "done"}, nil
	})
	require.Equal(t, []string{
		"gateway of process 1: done", "gateway of process 3: done", "gateway of process 4: done",
		fmt.Sprintf("gateway of process %d: has ended", ending.Process.Pid),
	}, said)
	require.Len(t, missed, 1)
	require.ErrorContains(t, missed[0], fmt.Sprintf("gateway of process %d was not told", self))
}

// TestMain is a process that a test looks for, or runs the tests and looks for leaks.
func TestMain(m *testing.M) {
	if role := os.Getenv(roleVariable); role != "" {
		os.Exit(play(role))
	}
	os.Exit(leak.Main(m))
}
