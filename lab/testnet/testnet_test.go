package testnet

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func TestConfigValidate(t *testing.T) {
	require.NoError(t, Config{}.Validate())
	err := Config{Hosts: []string{"a", "a", "with-dash", "muchtoolong"}, MTU: 100}.Validate()
	for _, want := range []string{"hosts[1]", "hosts[2]", "hosts[3]", "mtu"} {
		require.ErrorContains(t, err, want)
	}
	_, err = New(Config{MTU: 1})
	require.Error(t, err)
}

func TestHostsAreSeparate(t *testing.T) {
	n, h1, h2 := start(t, Config{})
	require.Len(t, n.Hosts(), 3)
	require.Nil(t, n.Host("h9"))
	ln, err := h1.Listen("tcp", "127.0.0.1:6000")
	require.NoError(t, err)
	defer ln.Close()
	_, err = h2.Dial(t.Context(), "tcp", "127.0.0.1:6000")
	require.ErrorIs(t, err, unix.ECONNREFUSED)
	conn, err := h1.Dial(t.Context(), "tcp", "127.0.0.1:6000")
	require.NoError(t, err)
	require.NoError(t, conn.Close())

	links, err := h1.Links()
	require.NoError(t, err)
	require.Equal(t, []string{"lo", "eth0"}, slices.DeleteFunc(links, func(s string) bool {
		return s != "lo" && s != "eth0" // fallback tunnels of some kernels
	}))
	rules, err := h1.Rules()
	require.NoError(t, err)
	require.NotEmpty(t, rules)
	require.NoError(t, n.Switch(func() error {
		_, err := os.Stat("/proc/self/net/dev")
		return err
	}))
}

func TestRouterAnswersUnreachable(t *testing.T) {
	_, h1, _ := start(t, Config{})
	for _, to := range []string{"10.99.0.1:80", "[fd99::1]:80"} {
		e := runApp(t, h1, "connect", "-to", to)
		require.Contains(t, []string{"ENETUNREACH", "EHOSTUNREACH"}, e.Errno, to)
		require.Equal(t, 1, e.Failed)
	}
}

// A detached grandchild, as daemons are, must not survive its host.
func TestCloseEndsEverything(t *testing.T) {
	Require(t, "root", "bpf")
	n, err := New(Config{Hosts: []string{"h1"}})
	require.NoError(t, err)
	defer n.Close()
	h := n.Host("h1")
	path := h.NamespacePath()
	require.FileExists(t, path)
	p, err := h.Start("setsid", "sh", "-c", "sleep 1000 & echo started; exec sleep 1000")
	require.NoError(t, err)
	require.NoError(t, p.WaitOutput(patience(t, 30*time.Second), "started"))
	require.GreaterOrEqual(t, len(h.Processes()), 2)
	pids := h.Processes()
	require.NoError(t, n.Close())
	for _, pid := range pids {
		require.Eventually(t, func() bool { return errors.Is(unix.Kill(pid, 0), unix.ESRCH) }, 30*time.Second, time.Millisecond)
	}
	require.NoFileExists(t, path)
	require.NoError(t, n.Close())
	require.ErrorIs(t, h.Command(t.Context(), "true").Start(), os.ErrClosed)
}

func TestProc(t *testing.T) {
	_, h1, _ := start(t, Config{})
	p, err := h1.Start("cat")
	require.NoError(t, err)
	require.NoError(t, p.Send("hello"))
	require.NoError(t, p.WaitOutput(patience(t, 30*time.Second), "hello"))
	require.NoError(t, p.CloseInput())
	require.NoError(t, p.Wait())
	require.NoError(t, p.Kill(), "after the end")
	require.ErrorContains(t, p.WaitOutput(patience(t, time.Second), "nothing"), "hello")

	p, err = h1.Start("sleep", "1000")
	require.NoError(t, err)
	require.Error(t, p.WaitOutput(patience(t, 20*time.Millisecond), "nothing"))
	require.Error(t, p.Stop(30*time.Second))
	_, err = h1.Start("/no/such/program")
	require.Error(t, err)
	out, err := h1.Run(t.Context(), "sh", "-c", "echo out; echo oops >&2; exit 3")
	require.ErrorContains(t, err, "oops")
	require.Equal(t, "out\n", out)

	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err = h1.Run(ctx, "sleep", "1000")
	require.Error(t, err)
}

func TestTranscriptIsBounded(t *testing.T) {
	tr := newTranscript()
	chunk := []byte(strings.Repeat("x", 1000))
	for range 3000 {
		n, err := tr.Write(chunk)
		require.NoError(t, err)
		require.Len(t, chunk, n)
	}
	_, _ = tr.Write([]byte("last"))
	require.LessOrEqual(t, len(tr.String()), transcriptLimit)
	require.True(t, strings.HasSuffix(tr.String(), "last"))
}

// Programs that make namespaces beside the tests disturb none.
func TestNamespaceBesideOthers(t *testing.T) {
	Require(t, "root", "ip")
	own, err := ownerName(os.Getpid())
	require.NoError(t, err)
	h, err := newNamespace(own + "-beside-1")
	require.NoError(t, err)
	require.NoError(t, h.Close())
	other := own + "-beside-2"
	for _, verb := range []string{"add", "delete"} {
		out, err := exec.Command("ip", "netns", verb, other).CombinedOutput()
		require.NoError(t, err, "%s", out)
	}
	require.NoError(t, deleteNamespace(own+"-beside-1"))
	require.NoFileExists(t, filepath.Join(runDir, own+"-beside-1"))
}

func TestSweep(t *testing.T) {
	Require(t, "root")
	// Process 2^22 cannot exist: it is the limit of pid_max.
	name := namePrefix + "4194304-1-1-h1"
	h, err := newNamespace(name)
	require.NoError(t, err)
	require.NoError(t, h.Close())
	own, err := ownerName(os.Getpid())
	require.NoError(t, err)
	require.False(t, orphaned(own+"-1-h1"))
	require.False(t, orphaned("somebodys"))
	require.False(t, orphaned(namePrefix+"x-1-1"))
	// Same process id, other start time: recycled.
	require.True(t, orphaned(fmt.Sprintf("%s%d-1-1-h1", namePrefix, os.Getpid())))
	require.NoError(t, Sweep())
	require.NoFileExists(t, filepath.Join(runDir, name))
}

func TestDoSurvivesFailure(t *testing.T) {
	_, h1, _ := start(t, Config{Hosts: []string{"h1"}})
	before, err := os.Readlink("/proc/thread-self/ns/net")
	require.NoError(t, err)
	want := errors.New("mine")
	require.ErrorIs(t, h1.Do(func() error { return want }), want)
	require.Panics(t, func() { _ = h1.Do(func() error { panic("oops") }) })
	after, err := os.Readlink("/proc/thread-self/ns/net")
	require.NoError(t, err)
	require.Equal(t, before, after)
}

func TestCgroup(t *testing.T) {
	_, h1, _ := start(t, Config{Hosts: []string{"h1"}})
	g, err := NewCgroup(fmt.Sprintf("smcgwt-%d", os.Getpid()))
	require.NoError(t, err)
	cmd := h1.Command(t.Context(), "cat", "/proc/self/cgroup")
	g.Hold(cmd)
	out, err := cmd.Output()
	require.NoError(t, err)
	require.Contains(t, string(out), "0::"+g.Name+"\n")
	require.NoError(t, g.Close())
	require.NoDirExists(t, g.Path)
}

// recorder is a TB that notes how a test would have ended.
type recorder struct {
	TB
	skipped, failed string
}

func (r *recorder) Helper()                   {}
func (r *recorder) Skipf(f string, a ...any)  { r.skipped = fmt.Sprintf(f, a...) }
func (r *recorder) Fatalf(f string, a ...any) { r.failed = fmt.Sprintf(f, a...) }

func TestRequire(t *testing.T) {
	for _, c := range []struct{ require, need, skipped, failed string }{
		{"", "no-such-program", "no-such-program", ""},
		{"bpf", "no-such-program", "no-such-program", ""},
		{"no-such-program", "no-such-program", "", "no-such-program"},
		{"root,bpf", "no-such-program", "", "no-such-program"},
		{"root,bpf", "sh", "", ""},
	} {
		t.Setenv(RequireVariable, c.require)
		r := &recorder{TB: t}
		Require(r, c.need)
		require.Equal(t, c.skipped == "", r.skipped == "", r.skipped)
		require.Contains(t, r.skipped, c.skipped)
		require.Equal(t, c.failed == "", r.failed == "", r.failed)
		require.Contains(t, r.failed, c.failed)
	}
}

// TestTapped sends to the other end of a tapped host's cable, which the test
// holds in its hands.
func TestTapped(t *testing.T) {
	Require(t, "vm")
	host, err := NewTapped(1400)
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, host.Close())
		require.NoFileExists(t, host.NamespacePath())
	})
	var cable int
	require.NoError(t, host.Do(func() (err error) {
		cable, err = openTap(TapDevice)
		return err
	}))
	defer func() { _ = unix.Close(cable) }()
	conn, err := host.Dial(patience(t, 30*time.Second), "udp", "10.77.0.2:9")
	require.NoError(t, err)
	defer func() { _ = conn.Close() }()
	_, err = conn.Write([]byte("x"))
	require.NoError(t, err)

	ask := make([]byte, 2000) // the ARP request for 10.77.0.2
	require.Eventually(t, func() bool {
		n, err := unix.Read(cable, ask)
		return err == nil && n >= 42 && ask[12] == 8 && ask[13] == 6 &&
			string(ask[28:32]) == "\x0a\x4d\x00\x01" && string(ask[38:42]) == "\x0a\x4d\x00\x02"
	}, 30*time.Second, 5*time.Millisecond)
}

func openTap(name string) (int, error) {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return -1, err
	}
	req, err := unix.NewIfreq(name)
	if err == nil {
		req.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI)
		err = unix.IoctlIfreq(fd, unix.TUNSETIFF, req)
	}
	return fd, err
}
