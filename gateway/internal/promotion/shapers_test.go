package promotion

import (
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"golang.org/x/time/rate"

	"github.com/smcgw/smcgw/lab/testnet"
)

// TestShapers: what shapes on the way of a connection is seen, and what does not is not taken for it.
func TestShapers(t *testing.T) {
	testnet.Require(t, "root", "tc", "ip")
	for _, c := range []struct {
		tc          string // arguments of tc qdisc; empty: none
		shaped, any bool
	}{
		{"", false, false},
		{"add dev v0 root fq_codel", false, false},
		{"add dev v0 root pfifo", false, false},
		{"add dev v1 root tbf rate 1mbit burst 10kb latency 50ms", false, true}, // the other device
		{"add dev v0 root tbf rate 1mbit burst 10kb latency 50ms", true, true},
		{"add dev v0 root handle 1: htb default 1", true, true},
		{"add dev v0 root netem delay 1ms", true, true},
		{"add dev v0 root fq maxrate 1mbit", true, true},
		{"add dev v0 root fq", false, false},
	} {
		testnet.InNamespace(t, func() {
			for _, args := range []string{
				"link add v0 type veth peer name v1", "addr add 10.9.0.1/24 dev v0", "link set v0 up", "link set v1 up", "link set lo up",
			} {
				out, err := exec.Command("ip", strings.Fields(args)...).CombinedOutput()
				require.NoError(t, err, "%s", out)
			}
			if c.tc != "" {
				out, err := exec.Command("tc", append([]string{"qdisc"}, strings.Fields(c.tc)...)...).CombinedOutput()
				if err != nil && strings.Contains(string(out), "qdisc kind is unknown") {
					t.Logf("the kernel has not: %s", c.tc)
					return
				}
				require.NoError(t, err, "%s: %s", c.tc, out)
			}
			p, err := openShapers()
			require.NoError(t, err)
			defer p.Close()
			q := shapedPath{Netns: p.cookie, Local: netip.MustParseAddr("10.9.0.1"), Remote: netip.MustParseAddr("10.9.0.2")}
			require.Equal(t, c.shaped, p.Shaped(q, 0), c.tc)
			require.Equal(t, c.shaped, p.Shaped(q, 0), "remembered")
			require.Equal(t, c.any, p.Any(0), c.tc)
			of := shapedPath{Local: q.Local, Remote: q.Remote} // whose namespace is that of its process
			require.Equal(t, c.shaped, p.Shaped(of, unix.Gettid()))
			require.False(t, p.Shaped(of, 0), "nothing is known of it")
			q.Remote = q.Local // by lo
			require.False(t, p.Shaped(q, 0))
		})
	}
}

// TestShapersOfOthers: the devices of another namespace are looked at from here, and where both of its ends are in it those of
// the loopback alone.
func TestShapersOfOthers(t *testing.T) {
	testnet.Require(t, "root", "tc", "ip")
	p, err := openShapers()
	require.NoError(t, err)
	defer p.Close()
	testnet.InNamespace(t, func() {
		run := func(name, args string) {
			t.Helper()
			out, err := exec.Command(name, strings.Fields(args)...).CombinedOutput()
			require.NoError(t, err, "%s", out)
		}
		run("ip", "link set lo up")
		run("ip", "link add d0 type veth peer name d1")
		run("ip", "addr add 10.9.0.1/24 dev d0")
		run("ip", "link set d0 up")
		out := shapedPath{Local: netip.MustParseAddr("10.9.0.1"), Remote: netip.MustParseAddr("10.9.0.2")}
		lo := shapedPath{Local: netip.MustParseAddr("127.0.0.1"), Remote: netip.MustParseAddr("127.0.0.1")}
		const tbf = " root tbf rate 1mbit burst 10kb latency 50ms"
		for _, c := range []struct {
			tc      string
			out, lo bool
		}{
			{"", false, false},
			{"qdisc add dev d0" + tbf, true, false},
			{"qdisc add dev lo" + tbf, true, true},
			{"qdisc del dev d0 root", false, true},
			{"qdisc del dev lo root", false, false},
		} {
			if c.tc != "" {
				run("tc", c.tc)
			}
			clear(p.namespaces) // not what was seen before
			require.Equal(t, c.out, p.Shaped(out, unix.Gettid()), c.tc)
			require.Equal(t, c.lo, p.Shaped(lo, unix.Gettid()), c.tc)
			require.Equal(t, c.out || c.lo || len(p.here.shaping) > 0, p.Any(unix.Gettid()), c.tc)
			require.Len(t, p.namespaces, 1)
		}
	})
}

// TestShapersOfProcessWithoutMain: the first thread of a process may have ended, and says nothing of its namespace then.
func TestShapersOfProcessWithoutMain(t *testing.T) {
	testnet.Require(t, "root", "tc", "ip", "gcc")
	dir := t.TempDir()
	source, file := filepath.Join(dir, "rest.c"), filepath.Join(dir, "rest")
	require.NoError(t, os.WriteFile(source, []byte(`#include <pthread.h>
#include <unistd.h>
static void *rest(void *main) { char c; pthread_join(*(pthread_t *)main, 0); write(1, "x", 1); read(0, &c, 1); _exit(0); }
static pthread_t self;
int main(void) { pthread_t t; self = pthread_self(); pthread_create(&t, 0, rest, &self); pthread_exit(0); }`), 0o600))
	out, err := exec.Command("gcc", "-o", file, source, "-lpthread").CombinedOutput()
	require.NoError(t, err, "%s", out)
	p, err := openShapers()
	require.NoError(t, err)
	defer p.Close()
	testnet.InNamespace(t, func() {
		for _, args := range []string{"ip link set lo up", "tc qdisc add dev lo root tbf rate 1mbit burst 10kb latency 50ms"} {
			words := strings.Fields(args)
			out, err := exec.Command(words[0], words[1:]...).CombinedOutput()
			require.NoError(t, err, "%s", out)
		}
		c := exec.Command(file)
		stdin, err := c.StdinPipe()
		require.NoError(t, err)
		stdout, err := c.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, c.Start())
		_, err = stdout.Read(make([]byte, 1))
		require.NoError(t, err)
		lo := netip.MustParseAddr("127.0.0.1")
		require.True(t, p.Shaped(shapedPath{Local: lo, Remote: lo}, c.Process.Pid))
		require.True(t, p.Any(c.Process.Pid))
		require.NoError(t, stdin.Close())
		require.NoError(t, c.Wait())
	})
}

// TestReviewTakesItsTime: namespaces that there is no time for stay as they were seen before.
func TestReviewTakesItsTime(t *testing.T) {
	testnet.Require(t, "root", "tc", "ip")
	p, err := openShapers()
	require.NoError(t, err)
	defer p.Close()
	testnet.InNamespace(t, func() {
		lo := shapedPath{Local: netip.MustParseAddr("127.0.0.1"), Remote: netip.MustParseAddr("127.0.0.1")}
		require.False(t, p.Shaped(lo, unix.Gettid()))
		for _, args := range []string{"ip link set lo up", "tc qdisc add dev lo root tbf rate 1mbit burst 10kb latency 50ms"} {
			words := strings.Fields(args)
			out, err := exec.Command(words[0], words[1:]...).CombinedOutput()
			require.NoError(t, err, "%s", out)
		}
		time.Sleep(fresh)
		p.reviews.SetLimit(0)
		p.reviews.ReserveN(time.Now(), int(reviewAtOnce))
		require.False(t, p.StillShaped(lo, unix.Gettid()))
		require.False(t, p.Any(unix.Gettid()))
		p.reviews.SetLimit(rate.Inf)
		require.True(t, p.Any(unix.Gettid()))
		require.True(t, p.StillShaped(lo, unix.Gettid()))
		p.reviews.SetLimit(0)
		require.True(t, p.Shaped(lo, unix.Gettid()), "a question is looked into")
	})
}
