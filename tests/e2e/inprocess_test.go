package e2e

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/gateway/admin"
	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/inprocess"
	"github.com/smcgw/smcgw/lab/testnet"
)

// inProcessPrograms builds the library and the programs stream, rest, stress and smcgw-load once.
var inProcessPrograms = sync.OnceValues(func() (dir string, err error) {
	dir = filepath.Dir(built)
	if os.Getenv(ProgramsVariable) != "" {
		return dir, nil
	}
	for name, source := range map[string]string{
		"stream": "testdata/inprocess/stream.c", "rest": "testdata/inprocess/rest.c", "stress": "../../inprocess/lib/test/stress.c", "smcgw-load": "../../cmd/smcgw/internal/bench/program/load.c",
	} {
		out, err := exec.Command("gcc", "-O1", "-pthread", "-o", filepath.Join(dir, name), source).CombinedOutput()
		if err != nil {
			return "", fmt.Errorf("gcc: %w\n%s", err, out)
		}
	}
	return dir, testnet.BuildLibrary(filepath.Join(dir, "libsmcgw.so"))
})

// inProcessWorld is a network in which the daemon of h3 serves programs of all three hosts.
type inProcessWorld struct {
	*world
	g       *gw
	dir     string                          // of the programs
	library bool                            // start programs with it
	apart   bool                            // each host has a daemon of its own
	within  map[*testnet.Host]*testnet.Host // if apart: whose daemon serves the programs of containers
}

func newInProcessWorld(t *testing.T, s settings) *inProcessWorld {
	t.Helper()
	w := newProgramsWorld(t)
	if !strings.Contains(s.Extra, "steering:") {
		s.Extra += "steering: off\n"
	}
	w.g = w.up(w.h3, s)
	return w
}

func newProgramsWorld(t *testing.T) *inProcessWorld {
	t.Helper()
	testnet.Require(t, "root", "bpf")
	if os.Getenv(ProgramsVariable) == "" {
		testnet.Require(t, "gcc")
	}
	dir, err := inProcessPrograms()
	require.NoError(t, err)
	return &inProcessWorld{world: newWorld(t, testnet.Config{}), dir: dir, library: true}
}

// start starts a program, with the library if the world says so.
func (w *inProcessWorld) start(h *testnet.Host, name string, args ...string) *testnet.Proc {
	w.t.Helper()
	cmd := h.Command(context.Background(), name, args...)
	cmd.Env = w.environment(h)
	p, err := h.StartCmd(cmd)
	require.NoError(w.t, err)
	return p
}

// environment returns the environment of a host's programs.
func (w *inProcessWorld) environment(h *testnet.Host) []string {
	if !w.library {
		return os.Environ()
	}
	at := w.h3
	if w.apart {
		at = cmp.Or(w.within[h], h)
	}
	return append(os.Environ(), "LD_PRELOAD="+filepath.Join(w.dir, "libsmcgw.so"), "SMCGW_SOCKET="+w.inProcess(at))
}

// flow is a stream whose bytes its programs check.
type flow struct {
	w              *inProcessWorld
	server, client *testnet.Proc
}

// stream starts a server and a client that sends to it at an address. The stream ends by itself after that many bytes.
func (w *inProcessWorld) stream(server, client *testnet.Host, address string, port, bytes int) *flow {
	w.t.Helper()
	return w.streamTo(server, transferPort, client, netip.AddrPortFrom(netip.MustParseAddr(address), uint16(port)), bytes)
}

// streamTo is stream with a server at a given port.
func (w *inProcessWorld) streamTo(server *testnet.Host, port int, client *testnet.Host, to netip.AddrPort, bytes int) *flow {
	w.t.Helper()
	f := &flow{w: w}
	f.server = w.start(server, filepath.Join(w.dir, "stream"), "serve", fmt.Sprint(port))
	ctx, cancel := context.WithTimeout(w.t.Context(), slowed(30*time.Second))
	defer cancel()
	require.NoError(w.t, f.server.WaitOutput(ctx, "serving"))
	f.client = w.start(client, filepath.Join(w.dir, "stream"), "send", to.Addr().String(), fmt.Sprint(to.Port()), fmt.Sprint(bytes), "16384", "1000")
	w.t.Cleanup(func() {
		if w.t.Failed() {
			w.t.Logf("server: %s\nclient: %s", tail(f.server.Output(), 300), tail(f.client.Output(), 300))
		}
		_ = f.client.Kill()
		_ = f.server.Kill()
	})
	return f
}

// kill kills both programs, so that another server can have the port.
func (f *flow) kill() {
	for _, p := range []*testnet.Proc{f.client, f.server} {
		_ = p.Kill() // it may have ended
		_ = p.Wait()
	}
}

// at returns how many bytes the server has received.
func (f *flow) at() (n int) {
	out := f.server.Output()
	if i := strings.LastIndex(out, "at "); i >= 0 {
		_, _ = fmt.Sscanf(out[i:], "at %d\n", &n)
	}
	return n
}

// goesOn requires the stream to move on within patience.
func (f *flow) goesOn(patience time.Duration) {
	f.w.t.Helper()
	was, since := f.at(), time.Now()
	for f.at() <= was+1<<18 {
		require.Less(f.w.t, time.Since(since), slowed(patience), "the stream stands at %d: %s %s", was, tail(f.server.Output(), 200), tail(f.client.Output(), 200))
		time.Sleep(10 * time.Millisecond)
	}
}

// saw returns the client's address as the server sees it. The server must have bytes.
func (f *flow) saw() netip.AddrPort {
	f.w.t.Helper()
	_, line, ok := strings.Cut(f.server.Output(), "saw ")
	require.True(f.w.t, ok, f.server.Output())
	line, _, _ = strings.Cut(line, "\n")
	return netip.MustParseAddrPort(line)
}

// ends makes the client end the stream, and requires it to be whole.
func (f *flow) ends() {
	f.w.t.Helper()
	require.NoError(f.w.t, f.client.Signal(syscall.SIGTERM))
	ctx, cancel := context.WithTimeout(f.w.t.Context(), slowed(30*time.Second))
	defer cancel()
	require.NoError(f.w.t, f.server.WaitOutput(ctx, "whole "), tail(f.server.Output(), 300))
	_, bytes, _ := strings.Cut(f.server.Output(), "whole ")
	require.NoError(f.w.t, f.client.WaitOutput(ctx, "whole "+bytes), tail(f.client.Output(), 300))
}

// whole requires that the stream has ended in order with all of its bytes.
func (f *flow) whole(bytes int) {
	f.w.t.Helper()
	ctx, cancel := context.WithTimeout(f.w.t.Context(), slowed(30*time.Second))
	defer cancel()
	want := fmt.Sprintf("whole %d", bytes)
	require.NoError(f.w.t, f.server.WaitOutput(ctx, want), tail(f.server.Output(), 300))
	require.NoError(f.w.t, f.client.WaitOutput(ctx, want), tail(f.client.Output(), 300))
}

// eventually waits until is returns true, or fails with the list of connections.
func (g *gw) eventually(what string, within time.Duration, is func() bool) {
	g.w.t.Helper()
	for end := time.Now().Add(slowed(within)); !is(); time.Sleep(20 * time.Millisecond) {
		require.True(g.w.t, time.Now().Before(end), "not %s: %s", what, g.dump())
	}
}

// callers returns the connections to the admin socket.
func (g *gw) callers(t *testing.T) (list []string) {
	t.Helper()
	table, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/unix", g.daemon()))
	require.NoError(t, err)
	for line := range strings.Lines(string(table)) {
		if f := strings.Fields(line); len(f) == 8 && f[5] == "03" && strings.HasPrefix(f[7], g.socket) { // SS_CONNECTED; it was bound under another name
			list = append(list, f[6])
		}
	}
	return list
}

// inProcess lists the promoted ends.
func (g *gw) inProcess() []report.ConnInfo {
	g.w.t.Helper()
	return slices.DeleteFunc(g.conns(), func(c report.ConnInfo) bool { return c.Way != report.WayInProcess })
}

// promoted waits until both ends of one connection are promoted and ring bytes have moved.
func (g *gw) promoted() (ends []report.ConnInfo) {
	g.w.t.Helper()
	g.eventually("promoted", 3*slack, func() bool {
		ends = g.inProcess()
		return len(ends) == 2 && ends[0].InProcess.TxRing+ends[0].InProcess.RxRing > 0 && ends[1].InProcess.TxRing+ends[1].InProcess.RxRing > 0
	})
	return ends
}

// whyNative waits until an end is native for a reason.
func (g *gw) whyNative(reason string) {
	g.w.t.Helper()
	g.eventually("native for "+reason, 3*slack, func() bool {
		return g.stats().InProcess.Native[reason] > 0
	})
	require.Empty(g.w.t, g.inProcess())
}

const endless = 1 << 40

// TestInProcess checks that a connection between two namespaces is promoted, and goes on whatever happens to the
// daemon.
func TestInProcess(t *testing.T) {
	t.Parallel()
	w := newInProcessWorld(t, settings{})
	f := w.stream(w.h1, w.h2, w.h1.Addr4.String(), transferPort, endless)
	ends := w.g.promoted()
	for _, e := range ends {
		require.Equal(t, "stream", e.Program.Name)
		require.NotZero(t, e.Program.PID)
		require.Equal(t, ends[0].InProcess.Conn, e.InProcess.Conn)
		require.Equal(t, "promoted", e.State)
	}
	out := w.g.says("conns")
	require.Regexp(t, `WAY +CARRIER.* PROGRAM +PID`, out)
	require.Regexp(t, `in-process.* stream `, out)
	st := w.g.status()
	require.Equal(t, 1, st.InProcess.Connections)
	require.NotZero(t, st.InProcess.RingBytesTotal)

	w.g.says("off")
	w.g.eventually("off", slack, func() bool { return len(w.g.inProcess()) == 0 })
	was := f.byKernel(w.g, slack)
	require.NotZero(t, was)
	w.g.says("on")
	w.g.promoted()
	w.g.eventually("in rings again", slack, func() bool { return w.g.ringBytes() > was+1<<18 })

	// Another connection, while the daemon is replaced and killed.
	f.kill()
	f = w.stream(w.h1, w.h2, w.h1.Addr4.String(), transferPort, endless)
	w.g.promoted()
	next := w.g.upgrade()
	f.goesOn(5 * time.Second)
	next.eventually("known to the successor", 3*slack, func() bool { return len(next.inProcess()) == 2 })
	for _, pid := range next.processes() {
		next.signal(pid, syscall.SIGKILL)
	}
	for range 5 {
		f.goesOn(5 * time.Second)
	}
}

// TestInProcessUnsteered checks that, where steering is wanted but the kernel is older than tcx (Linux 6.6), the
// daemon still serves programs, also between namespaces, and reports that it does nothing else.
func TestInProcessUnsteered(t *testing.T) {
	t.Parallel()
	var u unix.Utsname
	require.NoError(t, unix.Uname(&u))
	var major, minor int
	_, err := fmt.Sscanf(unix.ByteSliceToString(u.Release[:]), "%d.%d", &major, &minor)
	require.NoError(t, err)
	w := newInProcessWorld(t, settings{Extra: "steering: on\n"})
	old := major < 6 || major == 6 && minor < 6
	st := w.g.status()
	require.Equal(t, old, slices.Contains(st.Degraded, report.NoSteering), "Linux %d.%d: %v", major, minor, st.Degraded)
	require.Equal(t, old, strings.Contains(w.g.proc.Output(), "cannot steer connections"), w.g.proc.Output())
	require.True(t, st.InProcess.Serving)
	f := w.stream(w.h1, w.h2, w.h1.Addr4.String(), transferPort, endless)
	w.g.promoted()
	f.ends()
	require.EqualValues(t, 1, w.g.status().InProcess.ConnectionsTotal)
}

// TestInProcessTranslated checks promotion where addresses are translated twice between the two programs.
func TestInProcessTranslated(t *testing.T) {
	t.Parallel()
	w := newInProcessWorld(t, settings{})
	require.NoError(t, w.h3.SetSysctl("net.ipv4.ip_forward", "1"))
	require.NoError(t, w.h3.NFT(fmt.Sprintf(`table ip nat {
	chain pre { type nat hook prerouting priority dstnat; tcp dport %d dnat to %s:%d; }
	chain post { type nat hook postrouting priority srcnat; ip daddr %s masquerade random; }
}
`, echoPort, w.h1.Addr4, transferPort, w.h1.Addr4)))
	f := w.stream(w.h1, w.h2, w.h3.Addr4.String(), echoPort, endless)
	ends := w.g.promoted()
	for _, e := range ends {
		other := w.h3.Addr4
		require.Equal(t, other, e.Remote.Addr(), "each sees the router")
	}
	require.NotEqual(t, ends[0].Local.Port(), ends[1].Remote.Port())
	f.ends()
}

// TestInProcessFirewall checks that a firewall rule added later also stops the bytes in rings, that they go on when
// it is removed, and that a destroyed socket ends.
func TestInProcessFirewall(t *testing.T) {
	t.Parallel()
	w := newInProcessWorld(t, settings{})
	f := w.stream(w.h1, w.h2, w.h1.Addr4.String(), transferPort, endless)
	w.g.promoted()
	f.stopsByRule(w.g)
	f.destroyed()
}

// stopsByRule adds a rule that drops what the server receives, which must stop the stream, and removes it.
func (f *flow) stopsByRule(g *gw) {
	t, h := f.w.t, f.w.h1
	t.Helper()
	require.NoError(t, h.NFT(fmt.Sprintf("table ip late { chain in { type filter hook input priority 0; tcp dport %d drop; }; }\n", transferPort)))
	g.eventually("stopped by the rule", 2*time.Second+slack, func() bool {
		was := f.at()
		time.Sleep(time.Second)
		return f.at() == was
	})
	_, err := h.Run(t.Context(), "nft", "delete", "table", "ip", "late")
	require.NoError(t, err)
	f.goesOn(10 * time.Second) // after the kernel's next retransmission
}

// destroyed destroys the server's socket, which must end both.
func (f *flow) destroyed() {
	t := f.w.t
	t.Helper()
	_, err := f.w.h1.Run(t.Context(), "ss", "-K", "sport", "=", fmt.Sprint(transferPort))
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), slowed(3*slack))
	defer cancel()
	require.NoError(t, f.server.WaitOutput(ctx, "reset after"))
	require.NoError(t, f.client.WaitOutput(ctx, "error"))
}

// byKernel waits until a stream goes on without rings, and returns what its ends have sent by rings before: they leave
// them a little after the gateway has told them to.
func (f *flow) byKernel(g *gw, within time.Duration) (was uint64) {
	f.w.t.Helper()
	g.eventually("by the kernel", within, func() bool {
		was = g.ringBytes()
		f.goesOn(5 * time.Second)
		f.goesOn(5 * time.Second) // the first may have been for bytes from before
		return g.ringBytes() == was
	})
	return was
}

// movesAt waits until a stream moves, and no faster than that many bytes a second. What buffers hold at first, and what
// a program that had no processor finds there, comes faster.
func (f *flow) movesAt(most float64) {
	f.w.t.Helper()
	var rate float64
	for end := time.Now().Add(slowed(3 * slack)); rate == 0 || rate >= most; rate = f.rate(2 * time.Second) {
		require.True(f.w.t, time.Now().Before(end), "%.0f bytes a second instead of %.0f", rate, most)
	}
}

// rate returns how many bytes a second a stream moves.
func (f *flow) rate(span time.Duration) float64 {
	was, since := f.at(), time.Now()
	time.Sleep(span)
	return float64(f.at()-was) / time.Since(since).Seconds()
}

// ringBytes returns what ends that still have their memory have sent by rings.
func (g *gw) ringBytes() (n uint64) {
	for _, c := range g.conns("--all") {
		if c.InProcess != nil {
			n += c.InProcess.TxRing
		}
	}
	return n
}

// TestInProcessShaped checks that a queueing discipline added to the path of a promoted connection applies to it
// within two seconds, as it would natively, and that the connection returns to rings once the discipline is gone;
// unless the policy says otherwise.
func TestInProcessShaped(t *testing.T) {
	t.Parallel()
	const bytesPerSecond = 2 << 20
	shape := func(h *testnet.Host) {
		_, err := h.Run(t.Context(), "tc", "qdisc", "replace", "dev", "eth0", "root", "tbf", "rate", fmt.Sprint(8*bytesPerSecond), "burst", "64kb", "latency", "50ms")
		require.NoError(t, err)
	}
	for _, of := range []struct {
		name string
		at   func(w *inProcessWorld) *testnet.Host // the host whose device shapes
	}{
		{"sender", func(w *inProcessWorld) *testnet.Host { return w.h2 }},
		{"receiver", func(w *inProcessWorld) *testnet.Host { return w.h1 }},
	} {
		t.Run(of.name, func(t *testing.T) {
			w := newInProcessWorld(t, settings{})
			at := of.at(w)
			f := w.stream(w.h1, w.h2, w.h1.Addr4.String(), transferPort, endless)
			w.g.promoted()
			for range 2 {
				shape(at)
				w.g.eventually("sent back", 2*time.Second+slack, func() bool { return len(w.g.inProcess()) == 0 })
				was := f.byKernel(w.g, 3*slack)
				if at == w.h2 {
					f.movesAt(1.5 * bytesPerSecond)
				}
				require.Equal(t, was, w.g.ringBytes(), "by the kernel")
				for _, c := range w.g.conns("--all") {
					require.Equal(t, report.WayNative, c.Way)
					require.Equal(t, "path", c.Reason)
				}
				_, err := at.Run(t.Context(), "tc", "qdisc", "del", "dev", "eth0", "root")
				require.NoError(t, err)
				w.g.eventually("promoted again", slack, func() bool { return len(w.g.inProcess()) == 2 && w.g.ringBytes() > was+1<<20 })
			}
			require.NotZero(t, w.g.status().InProcess.Native["path"])
		})
	}
	t.Run("native", func(t *testing.T) { // what the discipline does to an untouched connection
		w := newInProcessWorld(t, settings{})
		w.library = false
		f := w.stream(w.h1, w.h2, w.h1.Addr4.String(), transferPort, endless)
		f.goesOn(5 * time.Second)
		shape(w.h2)
		f.movesAt(1.5 * bytesPerSecond)
	})
	t.Run("wanted", func(t *testing.T) {
		w := newInProcessWorld(t, settings{InProcess: ", shaped: on"})
		w.stream(w.h1, w.h2, w.h1.Addr4.String(), transferPort, endless)
		w.g.promoted()
		shape(w.h2)
		time.Sleep(slowed(3 * time.Second))
		require.Len(t, w.g.inProcess(), 2)
	})
	t.Run("another daemon", func(t *testing.T) { // it learns of the connection from its programs
		w := newInProcessWorld(t, settings{})
		w.stream(w.h1, w.h2, w.h1.Addr4.String(), transferPort, endless)
		w.g.promoted()
		shape(w.h2)
		w.g.eventually("sent back", slack, func() bool { return len(w.g.inProcess()) == 0 })
		next := w.g.upgrade()
		next.eventually("known to the successor, and what is sent by that path sent back", 3*slack, func() bool {
			return slices.ContainsFunc(next.conns("--all"), func(c report.ConnInfo) bool {
				return c.Local.Addr() == w.h2.Addr4 && c.Way == report.WayNative && c.Reason == "path"
			})
		})
		_, err := w.h2.Run(t.Context(), "tc", "qdisc", "del", "dev", "eth0", "root")
		require.NoError(t, err)
		next.eventually("promoted again", 3*slack, func() bool { return len(next.inProcess()) == 2 })
	})
}

// TestInProcessRefused checks that paths that shape and connections that no rule selects stay native, and that the
// mode observe counts what would be promoted.
func TestInProcessRefused(t *testing.T) {
	t.Parallel()
	t.Run("policy", func(t *testing.T) {
		w := newInProcessWorld(t, settings{Ports: "1"})
		f := w.stream(w.h1, w.h2, w.h1.Addr4.String(), transferPort, endless)
		w.g.whyNative("policy")
		f.ends()
	})
	t.Run("path", func(t *testing.T) {
		w := newInProcessWorld(t, settings{})
		_, err := w.h3.Run(t.Context(), "tc", "qdisc", "add", "dev", "eth0", "root", "tbf", "rate", "1gbit", "burst", "1mb", "latency", "50ms")
		require.NoError(t, err)
		f := w.stream(w.h1, w.h3, w.h1.Addr4.String(), transferPort, endless)
		w.g.whyNative("path")
		f.ends()
	})
	t.Run("observe", func(t *testing.T) {
		w := newInProcessWorld(t, settings{Mode: "observe"})
		f := w.stream(w.h1, w.h2, w.h1.Addr4.String(), transferPort, endless)
		w.g.whyNative("off")
		w.g.eventually("predicted", slack, func() bool { return w.g.status().InProcess.Predicted == 1 })
		f.ends()
	})
}

// TestInProcessViews checks that every view of an operator shows promoted connections while they live, and what
// became of them.
func TestInProcessViews(t *testing.T) {
	t.Parallel()
	w := newInProcessWorld(t, settings{})
	says := func(want string, args ...string) {
		t.Helper()
		out := w.g.says(args...)
		require.Regexp(t, want, out)
	}
	says(`0 connections carried\n`, "status", "--brief")
	before := w.g.callers(t)
	watch, err := w.h3.Start(binary, "watch", "-n", "4", "--socket", w.g.socket)
	require.NoError(t, err)
	t.Cleanup(func() { _ = watch.Kill() }) // if it has not ended
	w.g.eventually("watched", 3*slack, func() bool {
		return slices.ContainsFunc(w.g.callers(t), func(c string) bool { return !slices.Contains(before, c) })
	})
	w.g.status()                               // it has a processor
	time.Sleep(slowed(500 * time.Millisecond)) // until the watcher's question has been read
	f := w.stream(w.h1, w.h2, w.h1.Addr4.String(), transferPort, endless)
	w.g.promoted()
	says(`carried, 1 in process`, "status", "--brief")
	says(`in-process 1 connection, 1 since the start`, "status")
	says(`in-process 1 connection`, "stats")
	says(`(?s)1 in process.*in-process 1 connection.*in-process .*stream `, "top")
	says(`test +accelerate +100% +0 +1 `, "policy")
	page, _, err := w.g.client().Page(t.Context())
	require.NoError(t, err)
	require.Regexp(t, `In process now</h2><p class="value">1<`, string(page))
	require.Contains(t, string(page), `data-is="carrier">in process<`, "among the busiest")
	archive := filepath.Join(w.dir, "report.tar.gz")
	says("No key is in it", "bugreport", "--output", archive)
	all, err := exec.Command("tar", "-xzOf", archive).Output()
	require.NoError(t, err)
	require.Contains(t, string(all), `"way":"in-process"`)
	require.Contains(t, string(all), "smcgw_in_process_connections 1\n")
	f.ends()
	select {
	case <-watch.Done():
	case <-time.After(slowed(30 * time.Second)):
	}
	require.Regexp(t, `(?s)promoted.*promoted.*ended.*ended`, watch.Output())
	require.NoError(t, watch.Wait())
	var past admin.ConnList
	w.g.cliJSON(&past, "conns", "--closed")
	require.Len(t, past.Conns, 2)
	for _, c := range past.Conns {
		require.Equal(t, report.WayInProcess, c.Way)
		require.Equal(t, report.EndClosed, c.End)
		require.NotZero(t, c.InProcess.TxRing)
		require.NotZero(t, c.EndedAt)
	}
}

// TestInProcessGuard checks that connections that end because a program's memory says what cannot be trip the guard,
// like those that gateways reset. The guard then ends promotion until smcgw on.
func TestInProcessGuard(t *testing.T) {
	t.Parallel()
	w := newInProcessWorld(t, settings{Extra: "guard: { aborted: 10%, window: 1h, minimum: 1 }\n"})
	f := w.stream(w.h1, w.h2, w.h1.Addr4.String(), transferPort, endless)
	ends := w.g.promoted()
	i := slices.IndexFunc(ends, func(c report.ConnInfo) bool { return c.Local.Addr() == w.h2.Addr4 })
	// The program keeps writing correct values, and may change rings or end between the two steps of a write.
	w.g.eventually("reset", 3*slack, func() bool {
		if err := spoil(ends[i].Program.PID); err != nil {
			t.Log(err)
		}
		return strings.Contains(f.server.Output(), "reset after")
	})
	w.g.eventually("tripped", 3*slack, func() bool { return slices.Contains(w.g.status().Degraded, report.GuardTripped) })
	st := w.g.status()
	require.Contains(t, fmt.Sprint(st.Notes), "1 of 1 connections that ended")
	require.EqualValues(t, 1, st.InProcess.Broken)

	f.kill()
	f = w.stream(w.h1, w.h2, w.h1.Addr4.String(), transferPort, endless)
	w.g.eventually("native", 3*slack, func() bool { return w.g.status().InProcess.Native["off"] > 0 })
	f.goesOn(5 * time.Second)
	require.Empty(t, w.g.inProcess())
	w.g.says("on")
	require.NotContains(t, w.g.status().Degraded, report.GuardTripped)
	f.kill()
	w.stream(w.h1, w.h2, w.h1.Addr4.String(), transferPort, endless)
	w.g.promoted()
}

// spoil makes the memory of a program's only end claim more bytes than a ring can hold.
func spoil(pid int) error {
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(maps)) {
		var from, to uintptr
		var mode string
		if _, err := fmt.Sscanf(line, "%x-%x %s", &from, &to, &mode); err != nil || mode != "rw-s" || !strings.Contains(line, "smcgw-end") {
			continue
		}
		mem, err := os.OpenFile(fmt.Sprintf("/proc/%d/mem", pid), os.O_RDWR, 0)
		if err != nil {
			return err
		}
		defer func() { _ = mem.Close() }()
		for range 100 { // the program keeps writing correct values
			if _, err := mem.WriteAt([]byte{7: 1}, int64(from)+inprocess.EndHead); err != nil {
				return err
			}
		}
		return nil
	}
	return fmt.Errorf("process %d has no memory of an end", pid)
}

// TestInProcessPrograms checks promotion of redis and iperf3, which know nothing of it.
func TestInProcessPrograms(t *testing.T) {
	t.Parallel()
	testnet.Require(t, "redis-server", "redis-benchmark", "iperf3")
	w := newInProcessWorld(t, settings{})
	redis := w.start(w.h1, "redis-server", "--port", fmt.Sprint(redisPort), "--save", "", "--appendonly", "no", "--protected-mode", "no")
	ctx, cancel := context.WithTimeout(t.Context(), slowed(time.Minute))
	defer cancel()
	require.NoError(t, redis.WaitOutput(ctx, "Ready to accept connections"))
	iperf := w.start(w.h1, "iperf3", "-s", "-p", fmt.Sprint(iperfPort), "--forceflush")
	require.NoError(t, iperf.WaitOutput(ctx, "listening"))
	t.Cleanup(func() { _, _ = redis.Kill(), iperf.Kill() })
	for try := 0; ; try++ { // connections that end before a busy machine has time for them stay native
		before := w.g.status().InProcess
		load := w.start(w.h2, "redis-benchmark", "-h", w.h1.Addr4.String(), "-p", fmt.Sprint(redisPort), "-c", "4", "-n", "40000", "-t", "set,get", "-q")
		require.NoError(t, load.Wait(), load.Output())
		client := w.start(w.h2, "iperf3", "-c", w.h1.Addr4.String(), "-p", fmt.Sprint(iperfPort), "-t", "1")
		require.NoError(t, client.Wait(), client.Output())
		st := w.g.status().InProcess
		require.Zero(t, st.Misbehaved)
		conns, bytes := st.ConnectionsTotal-before.ConnectionsTotal, st.RingBytesTotal-before.RingBytesTotal
		if conns >= 9 && bytes > 64<<20 { // 4 for each kind of load, and a stream
			break
		}
		require.Less(t, try, lateTries, "%+v %s", st, w.g.dump())
	}
}
