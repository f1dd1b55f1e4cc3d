package suites

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/inprocess"
	"github.com/smcgw/smcgw/inprocess/broker"
	"github.com/smcgw/smcgw/inprocess/scan"
	"github.com/smcgw/smcgw/lab/matrix"
	"github.com/smcgw/smcgw/lab/testnet"
	"github.com/smcgw/smcgw/tests/inprocess/between"
)

// nobody is the user and group that suites run as.
const nobody = 65534

// results are the results of a suite's tests, by name.
type results map[string]string

// suite is a row of the table.
type suite struct {
	name  string
	needs []string      // programs by name, files by path; make install-suites-deps installs them
	limit time.Duration // for one run on an idle machine; after that the run has hung
	least int           // the least number of tests of a native run
	root  bool          // run as root, not as nobody
	short bool          // its connections end before their rings are used
	// ordered are tests for which a server must read from one connection before it reads from another, to which the
	// same client has written later. Natively epoll mostly has that order; TCP does not promise it, and the library
	// keeps it only between events that are milliseconds apart.
	ordered []string
	stays   inprocess.Why // why all of its connections stay native by design; empty: they are promoted
	// unscanned admits programs that make system calls of their own: such a row shows the library, not what a daemon
	// does.
	unscanned bool
	run       func(*round) results
}

// round is one run of a suite, on a host of its own.
type round struct {
	*testing.T
	suite
	host *testnet.Host
	dir  string   // writable; for temporary files, and its home
	env  []string // of its programs
	ctx  context.Context
}

// library builds the library once.
var library = sync.OnceValues(func() (string, error) {
	out, err := exec.Command("make", "-s", "-C", "../..", "bin/suites/libsmcgw.so").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("make bin/suites/libsmcgw.so: %w: %s", err, out)
	}
	return "../../bin/suites/libsmcgw.so", nil
})

// A way is how the connections of a suite are promoted. open returns the socket at which the suite's programs find a
// broker, and check, which, called after them, fails unless connections were promoted and bytes went by rings.
type way struct {
	name string
	open func(t *testing.T, s suite, dir string) (socket string, check func())
}

var ways = []way{{"one-host", oneHost}, {"between-hosts", betweenHosts}}

// compare runs a suite natively and with the library in each way.
func (s suite) compare(t *testing.T) {
	for _, need := range s.needs {
		_, err := exec.LookPath(need)
		if filepath.IsAbs(need) {
			_, err = os.Stat(need)
		}
		require.NoError(t, err, "make install-suites-deps")
	}
	native := []results{s.native(t)}
	require.GreaterOrEqual(t, len(native[0]), s.least, "tests of a native run")
	for _, w := range ways {
		if s.stays == inprocess.WhyNone || w.name == ways[0].name {
			t.Run(w.name, func(t *testing.T) { native = s.same(t, w, native) })
		}
	}
}

// same fails unless the library makes no difference. If a test differs, the native run is repeated, since the test
// may differ by itself. It returns all native runs.
func (s suite) same(t *testing.T, w way, native []results) []results {
	t.Helper()
	got := s.promoted(t, w)
	differ := differences(native, got)
	for again := 0; again < 3 && len(differ) > 0; again++ {
		t.Logf("natively again, for: %q", differ)
		native = append(native, s.native(t))
		differ = differences(native, got)
	}
	t.Logf("%d tests, results natively: %v, with the library: %v", len(native[0]), native[0].count(), got.count())
	for _, name := range s.ordered {
		if how, ok := differ[name]; ok {
			t.Logf("another order of two connections: %s: %s", name, how)
			delete(differ, name)
		}
	}
	require.Empty(t, differ, "tests that differ")
	return native
}

// differences returns the tests whose result did not occur natively.
func differences(native []results, got results) map[string]string {
	differ := map[string]string{}
	names := maps.Clone(got)
	for _, n := range native {
		maps.Copy(names, n)
	}
	for name := range names {
		var had []string
		same := false
		for _, n := range native {
			had = append(had, fmt.Sprintf("%q", n[name]))
			same = same || n[name] == got[name]
		}
		if !same {
			differ[name] = fmt.Sprintf("natively %s, with the library %q", strings.Join(slices.Compact(had), " or "), got[name])
		}
	}
	return differ
}

// count counts the results by kind.
func (r results) count() map[string]int {
	n := map[string]int{}
	for _, result := range r {
		n[result]++
	}
	return n
}

func (s suite) native(t *testing.T) results {
	t.Helper()
	dir := s.directory(t)
	return s.round(t, dir, nil)
}

// promoted runs the suite with the library and a broker of its own.
func (s suite) promoted(t *testing.T, w way) results {
	t.Helper()
	dir := s.directory(t)
	built, err := library()
	require.NoError(t, err)
	text, err := os.ReadFile(built)
	require.NoError(t, err)
	preload := filepath.Join(dir, "libsmcgw.so")
	require.NoError(t, os.WriteFile(preload, text, 0o755))
	socket, check := w.open(t, s, dir)
	got := s.round(t, dir, []string{"LD_PRELOAD=" + preload, "SMCGW_SOCKET=" + socket})
	check()
	return got
}

// oneHost promotes by memory that both ends share, with the daemon's broker.
func oneHost(t *testing.T, s suite, dir string) (socket string, check func()) {
	t.Helper()
	socket = filepath.Join(dir, "broker")
	scanner := broker.Scanner(scan.New())
	if s.unscanned {
		scanner = nil
	}
	b := broker.New(broker.Config{Thresholds: broker.Thresholds{Calls: 1}, Scanner: scanner, Log: slog.New(slog.NewTextHandler(t.Output(), nil))})
	l, err := broker.Listen(socket, 0o666)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- b.Serve(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-done)
	})
	return socket, func() {
		for end := time.Now().Add(10 * time.Second); b.Clients() > 0; time.Sleep(10 * time.Millisecond) {
			require.True(t, time.Now().Before(end), "processes are left")
		}
		c := b.Counters()
		t.Logf("with the library: %d processes, %d connections promoted, %d bytes by rings; not promoted: %v; returned: %v",
			c.ProcessesTotal, c.Promoted, c.MovedBytes, reasons(c.Denied), reasons(c.Returned))
		require.Zero(t, c.Misbehaved, "libraries that said what cannot be")
		if s.stays != inprocess.WhyNone {
			t.Logf("native by design: %s", s.stays.Meaning())
			require.Zero(t, c.Promoted, "connections promoted")
			require.NotZero(t, c.Denied[s.stays], "connections that stayed native for it")
			return
		}
		require.NotZero(t, c.Promoted, "connections promoted")
		require.True(t, s.short || c.MovedBytes > 0, "bytes by rings")
	}
}

// betweenHosts promotes each connection as if its ends were on two hosts; it plays the gateways and a slow carrier.
func betweenHosts(t *testing.T, s suite, _ string) (socket string, check func()) {
	t.Helper()
	h, err := between.Open(between.Faults{Delay: 200 * time.Microsecond, Whole: true}, matrix.Seed(t))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, h.Close()) })
	return h.Socket(), func() {
		t.Logf("with the library: %d connections promoted, %d bytes by rings", h.Promoted.Load(), h.Moved.Load())
		require.NotZero(t, h.Promoted.Load(), "connections promoted")
		require.True(t, s.short || h.Moved.Load() > 0, "bytes by rings")
	}
}

func reasons(by broker.ByWhy) map[string]uint64 {
	n := map[string]uint64{}
	for why, count := range by {
		if count > 0 {
			n[inprocess.Why(why).String()] = count
		}
	}
	return n
}

func (s suite) user() int {
	if s.root {
		return 0
	}
	return nobody
}

func (s suite) directory(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "suite") //nolint:usetesting // short: there are sockets in it
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	require.NoError(t, os.Chown(dir, s.user(), s.user()))
	return dir
}

// round runs the suite once. Its processes end with its host.
func (s suite) round(t *testing.T, dir string, env []string) results {
	t.Helper()
	n, err := testnet.New(testnet.Config{Hosts: []string{"h"}})
	require.NoError(t, err)
	defer func() { require.NoError(t, n.Close()) }()
	ctx, cancel := context.WithCancel(t.Context())
	hung := make(chan struct{})
	go func() {
		defer close(hung)
		s.patience(ctx)
		cancel()
	}()
	defer func() {
		cancel()
		<-hung
	}()
	r := &round{T: t, suite: s, host: n.Host("h"), dir: dir, ctx: ctx, env: append([]string{
		"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=" + dir, "TMPDIR=" + dir, "LANG=C.UTF-8",
	}, env...)}
	began := time.Now()
	got := s.run(r)
	t.Logf("%s: %d tests in %s", map[bool]string{true: "natively", false: "with the library"}[env == nil], len(got), time.Since(began).Round(time.Second))
	return got
}

// busyFor is how many times its limit a suite may take on a machine without a free processor.
const busyFor = 4

// patience returns when a suite has hung, or its context ends. A suite has hung once its limit has passed, not
// counting time in which some task of the machine waited for a processor.
func (s suite) patience(ctx context.Context) {
	var spent time.Duration
	last, waited := time.Now(), waitedForProcessor()
	for end := last.Add(busyFor * s.limit); spent < s.limit && last.Before(end); {
		select {
		case <-ctx.Done():
			return
		case <-time.After(time.Second):
		}
		now, w := time.Now(), waitedForProcessor()
		spent += max(0, now.Sub(last)-(w-waited))
		last, waited = now, w
	}
}

// waitedForProcessor returns how long some task has waited for a processor since the machine started, 0 if the kernel
// does not count it.
func waitedForProcessor() time.Duration {
	text, _ := os.ReadFile("/proc/pressure/cpu")
	line, _, _ := strings.Cut(string(text), "\n")
	_, total, _ := strings.Cut(line, "total=")
	us, _ := strconv.ParseInt(total, 10, 64)
	return time.Duration(us) * time.Microsecond
}

// command prepares a program of the suite.
func (r *round) command(name string, args ...string) *testnet.Cmd {
	c := r.host.Command(r.ctx, name, args...)
	c.Dir, c.Env = r.dir, slices.Clone(r.env)
	if !r.root {
		c.SysProcAttr.Credential = &syscall.Credential{Uid: nobody, Gid: nobody}
	}
	return c
}

// output runs a prepared program to its end and returns its output. A suite that hangs fails.
func (r *round) output(c *testnet.Cmd) (string, error) {
	r.Helper()
	f, err := os.CreateTemp(r.dir, "said")
	require.NoError(r, err)
	defer f.Close()
	c.Stdout, c.Stderr = f, f
	ran := c.Run()
	said, err := os.ReadFile(f.Name())
	require.NoError(r, err)
	require.NoError(r, r.ctx.Err(), "%q hung: %s", c.Args, tail(string(said)))
	return string(said), ran
}

// start starts a prepared server and waits until it accepts connections at an address.
func (r *round) start(c *testnet.Cmd, address string) *testnet.Proc {
	r.Helper()
	p, err := r.host.StartCmd(c)
	require.NoError(r, err)
	for {
		var conn net.Conn
		if conn, err = r.host.Dial(r.ctx, "tcp", address); err == nil {
			require.NoError(r, conn.Close())
			return p
		}
		select {
		case <-p.Done():
			require.FailNow(r, "ended: "+p.Name, tail(p.Output()))
		case <-r.ctx.Done():
			require.FailNow(r, "does not serve: "+p.Name, "%v: %s", err, tail(p.Output()))
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func tail(text string) string { return text[max(0, len(text)-4000):] }
