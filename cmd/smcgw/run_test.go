package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/inprocess"
	"github.com/smcgw/smcgw/inprocess/adopt"
	"github.com/smcgw/smcgw/inprocess/private"
	"github.com/smcgw/smcgw/internal/fdpass"
	"github.com/smcgw/smcgw/lab/testnet"
)

// runWorld is a user without a daemon.
type runWorld struct {
	t       *testing.T
	dir     string
	env     map[string]string
	admin   string // the socket of a daemon
	started int
	off     atomic.Bool // the switch of the host
	brokers sync.WaitGroup
}

func newRunWorld(t *testing.T) *runWorld {
	testnet.Require(t, "gcc")
	w := &runWorld{t: t, dir: t.TempDir()}
	w.admin = filepath.Join(w.dir, "admin")
	library := filepath.Join(w.dir, "library.so")
	src := filepath.Join(w.dir, "library.c")
	require.NoError(t, os.WriteFile(src, []byte("int smcgw_nothing;\n"), 0o600))
	text, err := exec.Command("gcc", "-shared", "-fPIC", "-o", library, src).CombinedOutput()
	require.NoError(t, err, string(text))
	w.env = map[string]string{"XDG_RUNTIME_DIR": w.dir, adopt.EnvLibrary: library, adopt.EnvSocket: filepath.Join(w.dir, "none")}
	t.Cleanup(w.brokers.Wait)
	return w
}

// startBroker is the hidden verb as a goroutine.
func (w *runWorld) startBroker(dir string, socket *os.File) error {
	fd, err := unix.FcntlInt(socket.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return err
	}
	w.started++
	w.brokers.Go(func() {
		f := os.NewFile(uintptr(fd), "socket")
		defer f.Close()
		if err := private.Serve(context.Background(), dir, f, private.Options{Off: w.off.Load, Log: slog.New(slog.DiscardHandler)}); err != nil {
			w.t.Error(err)
		}
	})
	return nil
}

func (w *runWorld) run(args ...string) (status int, stdout, stderr string) {
	e, out, errs := testEnv()
	e.getenv = func(name string) string { return w.env[name] }
	e.startBroker = w.startBroker
	e.service = filepath.Join(w.dir, "smcgw.yaml")
	require.NoError(w.t, os.WriteFile(e.service, []byte("admin: "+w.admin+"\n"), 0o600))
	status = run(w.t.Context(), e, append([]string{"run"}, args...))
	return status, out.String(), errs.String()
}

func TestRunKeepsTheStatus(t *testing.T) {
	w := newRunWorld(t)
	static := filepath.Join(w.dir, "static")
	text, err := exec.Command("go", "build", "-o", static, "testdata/nothing/main.go").CombinedOutput()
	require.NoError(t, err, string(text))
	notProgram := filepath.Join(w.dir, "text")
	require.NoError(t, os.WriteFile(notProgram, []byte("\x7fELF"), 0o700))
	for _, x := range []struct {
		args   []string
		status int
		says   string
	}{
		{[]string{"--", "sh", "-c", "exit 7"}, 7, "smcgw: no connection promoted: none moved enough to ask\n"},
		{[]string{"--", "sh", "-c", "kill -TERM $$"}, exitSignal + 15, "smcgw: no connection promoted: none moved enough to ask\n"},
		{[]string{"-q", "--", "true"}, 0, ""},
		{[]string{"--", "no-such-command"}, exitNotFound, "executable file not found"},
		{[]string{"--", notProgram}, exitNotExecutable, "exec format error"},
		{[]string{"--", static}, 0, "smcgw: no connection promoted: " + static + " is a Go program, which makes system calls of its own\n"},
		{[]string{"--socket", filepath.Join(w.dir, "none"), "--", "true"}, exitUnreachable, "none"},
	} {
		status, _, said := w.run(x.args...)
		require.Equal(t, x.status, status, "%v: %s", x.args, said)
		if x.says == "" {
			require.Empty(t, said)
		}
		require.Contains(t, said, x.says, "%v", x.args)
		require.LessOrEqual(t, strings.Count(said, "\n"), 1, said)
	}
	w.env[adopt.EnvLibrary] = filepath.Join(w.dir, "missing.so")
	status, _, said := w.run("--", "sh", "-c", "exit 7")
	require.Equal(t, 7, status)
	require.Contains(t, said, "missing.so")
}

// TestRunIsNotCarried: a gateway that does not let the command in does not keep it from running, unless it was asked for.
func TestRunIsNotCarried(t *testing.T) {
	testnet.Require(t, "root", "bpf")
	w := newRunWorld(t)
	_, cfg := serveFake(t, "broken")
	w.admin = cfg.Admin
	status, _, said := w.run("--", "sh", "-c", "exit 7")
	require.Equal(t, 7, status, said)
	require.Regexp(t, "smcgw: no connection promoted: .*\nsmcgw: connections to other hosts are not carried: .*no room", said)
	status, _, said = w.run("--socket", cfg.Admin, "--", "sh", "-c", "exit 7")
	require.Equal(t, exitFailed, status)
	require.Contains(t, said, "no room")
}

// TestRunBesideAHungDaemon: a command does not wait for one that takes connections and answers none.
func TestRunBesideAHungDaemon(t *testing.T) {
	w := newRunWorld(t)
	l, err := net.Listen("unix", w.admin)
	require.NoError(t, err)
	defer l.Close()
	begun := time.Now()
	status, _, said := w.run("--", "sh", "-c", "exit 7")
	require.Equal(t, 7, status, said)
	require.Less(t, time.Since(begun), 8*time.Second)
}

// TestRunGivesTheLibrary: the command has it in front of what else is preloaded, and the broker's socket.
func TestRunGivesTheLibrary(t *testing.T) {
	w := newRunWorld(t)
	other := filepath.Join(w.dir, "other.so")
	text, err := os.ReadFile(w.env[adopt.EnvLibrary])
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(other, text, 0o600))
	t.Setenv("LD_PRELOAD", other)
	for range 2 {
		status, out, said := w.run("--", "sh", "-c", "echo $LD_PRELOAD $SMCGW_SOCKET; test -S $SMCGW_SOCKET && test $SMCGW_RUN -gt 0 2>/dev/null || echo $SMCGW_RUN")
		require.Zero(t, status, said)
		words := strings.Fields(out)
		require.Equal(t, w.env[adopt.EnvLibrary]+":"+other, words[0])
		require.Equal(t, filepath.Join(w.dir, "smcgw", private.SocketName), words[1])
	}
	require.Equal(t, 1, w.started, "the second run joins the broker of the first")
}

// TestRunCounts: run tells what the library of its command's processes did.
func TestRunCounts(t *testing.T) {
	w := newRunWorld(t)
	begun, done := filepath.Join(w.dir, "begun"), filepath.Join(w.dir, "done")
	report := filepath.Join(w.dir, "report")
	ended := make(chan int, 1)
	var said string
	go func() {
		status, _, text := w.run("--json", "--report", report, "--", "sh", "-c",
			"echo $SMCGW_RUN $SMCGW_SOCKET >"+begun+".new; mv "+begun+".new "+begun+"; while test ! -e "+done+"; do sleep 0.02; done; exit 5")
		said = text
		ended <- status
	}()
	var words []string
	require.Eventually(t, func() bool {
		text, _ := os.ReadFile(begun)
		words = strings.Fields(string(text))
		return len(words) == 2
	}, 20*time.Second, 10*time.Millisecond)
	run, err := strconv.ParseUint(words[0], 10, 64)
	require.NoError(t, err)
	a, z := fakeLibrary(t, words[1], run), fakeLibrary(t, words[1], run)
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	client, err := net.Dial("tcp4", l.Addr().String())
	require.NoError(t, err)
	defer client.Close()
	server, err := l.Accept()
	require.NoError(t, err)
	defer server.Close()
	a.ask(client.(*net.TCPConn), 0x20000)
	z.ask(server.(*net.TCPConn), 0x20000)
	a.report(a.granted(), 30)
	z.report(z.granted(), 30)
	a.close()
	z.close()
	require.NoError(t, os.WriteFile(done, nil, 0o600))
	require.Equal(t, 5, <-ended)
	require.Empty(t, said)
	text, err := os.ReadFile(report)
	require.NoError(t, err)
	var doc runDoc
	require.NoError(t, json.Unmarshal(text, &doc))
	require.Equal(t, 5, doc.Status)
	require.Equal(t, inProcessDoc{Broker: words[1], Promoted: 1, Bytes: 30}, doc.InProcess)
	require.Equal(t, "1 connection promoted, 30B by shared memory", doc.InProcess.summary())
}

// TestRunObeysTheSwitch: where the host is off a user's own broker promotes nothing, either.
func TestRunObeysTheSwitch(t *testing.T) {
	w := newRunWorld(t)
	w.off.Store(true)
	dir, err := private.Dir([]string{w.dir}, "")
	require.NoError(t, err)
	c, err := private.Join(t.Context(), dir, 7, func(socket *os.File) error { return w.startBroker(dir, socket) })
	require.NoError(t, err)
	defer c.Close()
	l := fakeLibrary(t, filepath.Join(dir, private.SocketName), 7)
	defer l.close()
	server, err := net.Listen("tcp4", "127.0.0.1:0")
	require.NoError(t, err)
	defer server.Close()
	client, err := net.Dial("tcp4", server.Addr().String())
	require.NoError(t, err)
	defer client.Close()
	refused := func(tag uint32) {
		t.Helper()
		r := l.receive()
		require.Equal(t, inprocess.Record{What: inprocess.Deny, Tag: tag, Why: inprocess.WhyOff}, r)
	}
	l.ask(client.(*net.TCPConn), 0x20000)
	refused(0x20000)
	w.off.Store(false)
	tag := uint32(0x40000)
	require.Eventually(t, func() bool { // until one is not refused
		l.ask(client.(*net.TCPConn), tag)
		l.send(inprocess.Record{What: inprocess.Count, ID: 7})
		if r := l.receive(); r.What == inprocess.Count {
			return true
		}
		require.Equal(t, inprocess.Count, l.receive().What)
		tag += 0x20000
		return false
	}, 20*time.Second, 10*time.Millisecond)
	w.off.Store(true)
	refused(tag)
}

func TestRunSummary(t *testing.T) {
	for want, d := range map[string]inProcessDoc{
		"2 connections promoted, 2KiB by shared memory; ends that went native: no_peer 3":     {Promoted: 2, Bytes: 2048, Native: map[string]uint64{"no_peer": 3}},
		"no connection promoted: " + inprocess.WhyNoPeer.Meaning() + " (no_peer 3, option 1)": {Native: map[string]uint64{"no_peer": 3, "option": 1}},
		"no connection promoted: none moved enough to ask":                                    {},
		"no connection promoted: " + inprocess.WhyOff.Meaning():                               {off: true},
	} {
		require.Equal(t, want, d.summary())
	}
	r := runDoc{Conns: []report.ConnInfo{{Way: report.WayInProcess, End: "closed"}, {Reason: "canary"}, {Carrier: "rdma-shm"}, {}}}
	require.Equal(t, "4 connections: by rdma-shm 1, in process 1, native (canary) 1, not seen by the gateway 1", runSummary(r))
}

// TestRunOutlivesItsBroker: of one that went meanwhile, as a daemon that another takes over from, run does not say that
// nothing was promoted.
func TestRunOutlivesItsBroker(t *testing.T) {
	w := newRunWorld(t)
	at := filepath.Join(w.dir, "daemon.sock")
	w.env[adopt.EnvSocket] = at
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: at, Net: "unixpacket"})
	require.NoError(t, err)
	defer l.Close()
	go func() {
		c, err := l.AcceptUnix()
		if err != nil {
			return
		}
		defer c.Close()
		if b := make([]byte, inprocess.RecordSize); assert.NoError(t, second(c.Read(b))) {
			assert.NoError(t, second(c.Write(b)))
		}
	}()
	status, _, said := w.run("--", "sh", "-c", "exit 7")
	require.Equal(t, 7, status, said)
	require.Contains(t, said, "smcgw: what became of the connections is not known: the daemon that counted them has ended, or was restarted")
}

func second(_ int, err error) error { return err }

// speaker speaks the library's records.
type speaker struct {
	t    *testing.T
	conn *net.UnixConn
	slab int
}

func fakeLibrary(t *testing.T, at string, run uint64) *speaker {
	c, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: at, Net: "unixpacket"})
	require.NoError(t, err)
	require.NoError(t, c.SetReadDeadline(time.Now().Add(time.Minute)))
	s := &speaker{t: t, conn: c}
	s.slab, err = unix.MemfdCreate("slab", unix.MFD_CLOEXEC)
	require.NoError(t, err)
	require.NoError(t, unix.Ftruncate(s.slab, inprocess.EntrySize))
	s.send(inprocess.Record{What: inprocess.Hello, ID: run, A: inprocess.Version, B: 1}, s.slab)
	require.Equal(t, inprocess.Welcome, s.receive().What)
	return s
}

func (s *speaker) send(r inprocess.Record, fds ...int) {
	require.NoError(s.t, fdpass.SendFDs(s.conn, r.Append(nil), fds))
}

// receive closes the files: these tests have no use for them.
func (s *speaker) receive() inprocess.Record {
	b := make([]byte, inprocess.RecordSize)
	n, fds, cut, err := fdpass.Receive(s.conn, b)
	fdpass.CloseFDs(fds)
	require.NoError(s.t, errors.Join(cut, err))
	r, err := inprocess.ParseRecord(b[:n])
	require.NoError(s.t, err)
	return r
}

func (s *speaker) ask(c *net.TCPConn, tag uint32) {
	raw, err := c.SyscallConn()
	require.NoError(s.t, err)
	require.NoError(s.t, raw.Control(func(fd uintptr) { s.send(inprocess.Record{What: inprocess.Ask, Tag: tag}, int(fd)) }))
}

func (s *speaker) granted() uint64 {
	r := s.receive()
	require.Equal(s.t, inprocess.Grant, r.What, "%+v", r)
	return r.ID
}

// report says that so many bytes went by the ring.
func (s *speaker) report(id, moved uint64) {
	b := make([]byte, inprocess.ReportSize)
	binary.NativeEndian.PutUint32(b[inprocess.ReportState:], uint32(inprocess.StatePromoted))
	binary.NativeEndian.PutUint64(b[inprocess.ReportID:], id)
	binary.NativeEndian.PutUint64(b[inprocess.ReportTxRing:], moved)
	_, err := unix.Pwrite(s.slab, b, 0)
	require.NoError(s.t, err)
}

func (s *speaker) close() {
	_ = s.conn.Close()
	_ = unix.Close(s.slab)
}

// started is a command as a process of its own, natively or by run.
type started struct {
	*exec.Cmd
	out, err bytes.Buffer
}

// eitherWay tests what a command does natively, and that it does the same by run.
func eitherWay(t *testing.T, w *runWorld, test func(t *testing.T, command func(args ...string) *started)) {
	self, err := os.Executable()
	require.NoError(t, err)
	for name, before := range map[string][]string{"natively": nil, "by run": {"run", "-q", "--"}} {
		t.Run(name, func(t *testing.T) {
			test(t, func(args ...string) *started {
				s := &started{Cmd: exec.Command(args[0], args[1:]...)}
				if before != nil {
					s.Path, s.Args = self, append(append([]string{"smcgw"}, before...), args...)
				}
				s.Env = append(os.Environ(), "WORK="+w.dir)
				for name, value := range w.env {
					s.Env = append(s.Env, name+"="+value)
				}
				s.Stdout, s.Stderr, s.SysProcAttr = &s.out, &s.err, &syscall.SysProcAttr{Setsid: true}
				return s
			})
		})
	}
}

// exitCode is the exit status in what waiting for a process returned.
func exitCode(err error) (int, error) {
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return exit.ExitCode(), nil
	}
	return 0, err
}

// exited is an exit status.
func exited(t *testing.T, err error) int {
	t.Helper()
	code, err := exitCode(err)
	require.NoError(t, err)
	return code
}

// notes waits until a file has a line.
func notes(t *testing.T, file, line string) {
	t.Helper()
	require.Eventually(t, func() bool {
		text, _ := os.ReadFile(file)
		return strings.Contains(string(text), line+"\n")
	}, 30*time.Second, 5*time.Millisecond, line)
}

// TestRunPassesSignalsOn: what is sent to the process is the command's.
func TestRunPassesSignalsOn(t *testing.T) {
	hangup := make(chan os.Signal, 1)
	signal.Notify(hangup, syscall.SIGHUP) // the commands would inherit that these tests ignore it, as under nohup
	t.Cleanup(func() { signal.Stop(hangup) })
	w := newRunWorld(t)
	eitherWay(t, w, func(t *testing.T, command func(...string) *started) {
		file := filepath.Join(t.TempDir(), "notes")
		s := command("sh", "-c", `for s in HUP USR1 USR2 WINCH TERM; do trap "echo $s >>$0" $s; done; trap "echo QUIT >>$0; exit 3" QUIT; trap "echo INT >>$0" INT
			echo ready >>$0; while :; do sleep 0.02; done`, file)
		require.NoError(t, s.Start())
		t.Cleanup(func() { _ = syscall.Kill(-s.Process.Pid, syscall.SIGKILL) }) // its session, if the test has failed
		notes(t, file, "ready")
		for _, x := range []struct {
			signal syscall.Signal
			name   string
		}{{syscall.SIGHUP, "HUP"}, {syscall.SIGUSR1, "USR1"}, {syscall.SIGUSR2, "USR2"}, {syscall.SIGWINCH, "WINCH"}, {syscall.SIGTERM, "TERM"}, {syscall.SIGINT, "INT"}, {syscall.SIGQUIT, "QUIT"}} {
			require.NoError(t, s.Process.Signal(x.signal))
			notes(t, file, x.name)
		}
		require.Equal(t, 3, exited(t, s.Wait()), s.err.String())
	})
}

// TestRunAtATerminal: ^C is the command's once, and what it does of it counts.
func TestRunAtATerminal(t *testing.T) {
	w := newRunWorld(t)
	eitherWay(t, w, func(t *testing.T, command func(...string) *started) {
		file, done := filepath.Join(t.TempDir(), "notes"), filepath.Join(t.TempDir(), "done")
		x := newTerminal(t)
		s := command("sh", "-c", `trap "echo INT >>$0" INT; echo ready >>$0; while test ! -e $1; do sleep 0.02; done; exit $(grep -c INT $0)`, file, done)
		s.Stdin, s.Stdout, s.Stderr = x.far, x.far, x.far
		s.SysProcAttr.Setctty = true
		require.NoError(t, s.Start())
		notes(t, file, "ready")
		_, err := io.WriteString(x.near, "\x03")
		require.NoError(t, err)
		notes(t, file, "INT")
		require.NoError(t, os.WriteFile(done, nil, 0o600))
		require.Equal(t, 1, exited(t, s.Wait()))
	})
}

// TestRunIgnoresWhatItsCallerDid: as after nohup, and in the background of a script.
func TestRunIgnoresWhatItsCallerDid(t *testing.T) {
	w := newRunWorld(t)
	eitherWay(t, w, func(t *testing.T, command func(...string) *started) {
		s := command("sh", "-c", "kill -HUP $$; kill -INT $$; echo lives")
		s.Args = append([]string{"bash", "-c", `trap "" HUP INT; exec -a "$0" "$@"`, s.Args[0], s.Path}, s.Args[1:]...)
		s.Path = "/bin/bash"
		require.Zero(t, exited(t, s.Run()), s.err.String())
		require.Equal(t, "lives\n", s.out.String())
	})
}

// TestRunWithoutAReader: the status is the command's, though nobody reads what run says at the end.
func TestRunWithoutAReader(t *testing.T) {
	w := newRunWorld(t)
	eitherWay(t, w, func(t *testing.T, command func(...string) *started) {
		near, far, err := os.Pipe()
		require.NoError(t, err)
		require.NoError(t, near.Close())
		s := command("sh", "-c", "exit 7")
		s.Stderr = far
		s.Args = slices.DeleteFunc(s.Args, func(arg string) bool { return arg == "-q" }) // run says something at the end
		require.NoError(t, s.Start())
		require.NoError(t, far.Close())
		require.Equal(t, 7, exited(t, s.Wait()))
	})
}

// TestBrokerKeepsNothing: whoever waits for the end of a pipe that run has from it does not wait for the broker, which goes on.
func TestBrokerKeepsNothing(t *testing.T) {
	w := newRunWorld(t)
	eitherWay(t, w, func(t *testing.T, command func(...string) *started) {
		near, far, err := os.Pipe()
		require.NoError(t, err)
		defer near.Close()
		in, hold, err := os.Pipe()
		require.NoError(t, err)
		s := command("sh", "-c", "echo ready; exec cat")
		s.Stdin, s.ExtraFiles, s.Stdout = in, []*os.File{nil, far}, far
		require.NoError(t, s.Start())
		pipe, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", far.Fd()))
		require.NoError(t, err)
		require.NoError(t, errors.Join(far.Close(), in.Close()))
		_, err = io.ReadFull(near, make([]byte, len("ready\n")))
		require.NoError(t, err)
		var broker string
		if s.Args[0] == "smcgw" {
			broker = processOf(t, brokerVerb+"\x00"+filepath.Join(w.env["XDG_RUNTIME_DIR"], "smcgw"))
			require.Eventually(t, func() bool {
				files, err := os.ReadDir(broker + "/fd")
				return err == nil && !slices.ContainsFunc(files, func(f os.DirEntry) bool {
					to, _ := os.Readlink(broker + "/fd/" + f.Name())
					return to == pipe
				})
			}, 30*time.Second, 5*time.Millisecond)
		}
		require.NoError(t, hold.Close())
		require.Zero(t, exited(t, s.Wait()))
		rest, err := io.ReadAll(near)
		require.NoError(t, err)
		require.Empty(t, rest)
		require.Eventually(t, func() bool { _, err := os.Stat(broker); return broker == "" || err != nil }, 30*time.Second, 10*time.Millisecond)
	})
}

// processOf is the directory of the process whose command line has a text.
func processOf(t *testing.T, text string) string {
	t.Helper()
	lines, err := filepath.Glob("/proc/[0-9]*/cmdline")
	require.NoError(t, err)
	for _, f := range lines {
		if line, _ := os.ReadFile(f); strings.Contains(string(line), text) {
			return filepath.Dir(f)
		}
	}
	t.Fatalf("no process has %q", text)
	return ""
}
