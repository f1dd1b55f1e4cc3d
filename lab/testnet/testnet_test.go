package testnet

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/lab/apps"
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

func TestNativeTCP(t *testing.T) {
	_, h1, h2 := start(t, Config{})
	srv := startApp(t, h2, "serve", "transfer=[::]:7000")
	for _, c := range []struct {
		name  string
		to    netip.AddrPort
		local netip.Addr
		flags []string
	}{
		{"ipv4", h2.AddrPort4(7000), h1.Addr4, nil},
		{"ipv6", h2.AddrPort6(7000), h1.Addr6, nil},
		{"mapped", h2.AddrPort4(7000), h1.Addr4, []string{"-mapped"}},
		{"bound", h2.AddrPort4(7000), h1.Addr4, []string{"-bind", h1.Addr4.String() + ":4242"}},
		{"mptcp to plain", h2.AddrPort6(7000), h1.Addr6, []string{"-mptcp"}},
		{"large writes", h2.AddrPort4(7000), h1.Addr4, []string{"-write", strconv.Itoa(3 << 20)}},
		{"server after fin", h2.AddrPort6(7000), h1.Addr6, []string{"-late"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			args := append([]string{"transfer", "-to", c.to.String(), "-up", "5000000", "-down", "3000001"}, c.flags...)
			e := runApp(t, h1, args...)
			require.Empty(t, e.Error)
			require.Equal(t, 1, e.OK)
			require.EqualValues(t, 5000000, e.Sent)
			require.EqualValues(t, 3000001, e.Received)
			require.Equal(t, c.to.String(), e.Remote)
			local := netip.MustParseAddrPort(e.Local)
			require.Equal(t, c.local, local.Addr())
			_, err := srv.WaitEvents(patience(t, 30*time.Second), 1, func(ev apps.Event) bool {
				return ev.Event == "closed" && ev.Remote == e.Local && ev.Local == e.Remote && ev.Error == ""
			})
			require.NoError(t, err)
		})
	}
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

func TestSysctlAndSettings(t *testing.T) {
	_, h1, h2 := start(t, Config{NoOffload: true})
	const name = "net.ipv4.tcp_syn_retries"
	other, err := h2.Sysctl(name)
	require.NoError(t, err)
	require.NoError(t, h1.SetSysctl(name, "3"))
	v, err := h1.Sysctl(name)
	require.NoError(t, err)
	require.Equal(t, "3", v)
	v, err = h2.Sysctl(name)
	require.NoError(t, err)
	require.Equal(t, other, v)
	require.Error(t, h1.SetSysctl("net.ipv4.no_such_thing", "1"))

	require.NoError(t, h1.SetMTU(1400))
	require.NoError(t, h1.AddAddress(netip.MustParsePrefix("10.77.0.101/24")))
	startApp(t, h2, "serve", "transfer=[::]:7000")
	e := runApp(t, h1, "transfer", "-to", h2.AddrPort4(7000).String(), "-bind", "10.77.0.101:0", "-up", "100000")
	require.Equal(t, 1, e.OK, e.Error)
	require.True(t, strings.HasPrefix(e.Local, "10.77.0.101:"))

	require.NoError(t, h1.SetLink(false))
	e = runApp(t, h1, "connect", "-to", h2.AddrPort4(7000).String(), "-timeout", "50ms")
	require.Equal(t, "GAVE_UP", e.Errno)
	require.NoError(t, h1.SetLink(true))
	require.Eventually(t, func() bool {
		return runApp(t, h1, "connect", "-to", h2.AddrPort4(7000).String(), "-timeout", "1s").OK == 1
	}, 30*time.Second, 10*time.Millisecond)
}

func TestRouterAnswersUnreachable(t *testing.T) {
	_, h1, _ := start(t, Config{})
	for _, to := range []string{"10.99.0.1:80", "[fd99::1]:80"} {
		e := runApp(t, h1, "connect", "-to", to)
		require.Contains(t, []string{"ENETUNREACH", "EHOSTUNREACH"}, e.Errno, to)
		require.Equal(t, 1, e.Failed)
	}
}

func TestNFT(t *testing.T) {
	_, h1, h2 := start(t, Config{})
	startApp(t, h2, "serve", "echo=[::]:7000")
	require.NoError(t, h2.NFT(`
		table inet t {
			chain c {
				type filter hook input priority 0; policy drop;
				icmpv6 type { nd-neighbor-solicit, nd-neighbor-advert } accept
				tcp dport 7001 reject with tcp reset
				ip saddr 10.77.0.3 tcp dport 7000 accept
				ct state established accept
			}
		}`))
	e := runApp(t, h1, "connect", "-to", h2.AddrPort4(7000).String(), "-timeout", "100ms")
	require.Equal(t, "GAVE_UP", e.Errno)
	e = runApp(t, h1, "connect", "-to", h2.AddrPort4(7001).String())
	require.Equal(t, "ECONNREFUSED", e.Errno)
	e = runApp(t, h2.net.Host("h3"), "connect", "-to", h2.AddrPort4(7000).String())
	require.Equal(t, 1, e.OK, e.Error)
	require.NoError(t, h2.FlushNFT())
	e = runApp(t, h1, "ping", "-to", h2.AddrPort4(7000).String())
	require.Equal(t, 1, e.OK, e.Error)
	require.Error(t, h2.NFT("no such ruleset"))
}

func TestBehind(t *testing.T) {
	n, h1, h2 := start(t, Config{})
	c, err := n.Behind(h1, "c1")
	require.NoError(t, err)
	require.Same(t, c, n.Host("c1"))
	srv := startApp(t, h2, "serve", "echo=[::]:7000")
	served := 0
	seenAs := func(to netip.AddrPort) string {
		e := runApp(t, c, "ping", "-to", to.String())
		require.Equal(t, 1, e.OK, e.Error)
		served++
		ev, err := srv.WaitEvents(patience(t, 30*time.Second), served, func(e apps.Event) bool { return e.Event == "accepted" })
		require.NoError(t, err)
		return netip.MustParseAddrPort(ev[len(ev)-1].Remote).Addr().String()
	}
	require.Equal(t, c.Addr4.String(), seenAs(h2.AddrPort4(7000)))
	require.Equal(t, c.Addr6.String(), seenAs(h2.AddrPort6(7000)))
	require.NoError(t, h1.NFT(`
		table ip nat {
			chain post {
				type nat hook postrouting priority 100;
				oifname "eth0" masquerade
			}
		}`))
	require.Equal(t, h1.Addr4.String(), seenAs(h2.AddrPort4(7000)))
	require.Error(t, c.SetBox(Box{}))
	_, err = n.Behind(h1, "c1")
	require.Error(t, err)
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

func TestPrograms(t *testing.T) {
	Require(t, "root", "redis-server", "redis-cli", "redis-benchmark", "iperf3")
	_, h1, h2 := start(t, Config{})
	_, err := h2.Redis(6379)
	require.NoError(t, err)
	ctx := patience(t, 30*time.Second)
	for _, to := range []netip.AddrPort{h2.AddrPort4(6379), h2.AddrPort6(6379)} {
		out, err := h1.RedisCLI(ctx, to, "SET", "k", "v")
		require.NoError(t, err)
		require.Equal(t, "OK", out)
	}
	out, err := h1.RedisCLI(ctx, h2.AddrPort4(6379), "CLIENT", "LIST")
	require.NoError(t, err)
	require.Contains(t, out, "addr="+h1.Addr4.String()+":")
	rates, err := h1.RedisBenchmark(ctx, h2.AddrPort4(6379), "-n", "2000", "-t", "get,set")
	require.NoError(t, err)
	require.Positive(t, rates["GET"])
	require.Positive(t, rates["SET"])

	_, err = h2.IPerf3Server(5201)
	require.NoError(t, err)
	r, err := h1.IPerf3(ctx, h2.AddrPort6(5201), "-n", "20M")
	require.NoError(t, err)
	require.Positive(t, r.BitsPerSecond)
	_, err = h1.IPerf3(ctx, h2.AddrPort6(5999), "-t", "1")
	require.Error(t, err)
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
