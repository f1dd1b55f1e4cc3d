package guardian

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/gateway/process"
	"github.com/smcgw/smcgw/internal/fdpass"
	"github.com/smcgw/smcgw/internal/procfs"
	"github.com/smcgw/smcgw/lab/leak"
)

// fileHeartbeat stands for the map: eight bytes of a file.
type fileHeartbeat struct{ fd int }

func (h fileHeartbeat) Read() (time.Duration, error) {
	var b [8]byte
	if n, err := unix.Pread(h.fd, b[:], 0); n < len(b) && err != nil {
		return 0, err
	}
	return time.Duration(binary.LittleEndian.Uint64(b[:])), nil
}

func (h fileHeartbeat) beat(v uint64) {
	var b [8]byte
	binary.LittleEndian.PutUint64(b[:], v)
	_, _ = unix.Pwrite(h.fd, b[:], 0)
}

func (h fileHeartbeat) Stop() error {
	h.beat(0)
	return nil
}

// toldHeartbeat says when it is stopped.
type toldHeartbeat struct{ fileHeartbeat }

func (h toldHeartbeat) Stop() error {
	fmt.Println("stopped by", os.Getpid())
	return h.fileHeartbeat.Stop()
}

// fakeEnv tells the fake program what to do; its value is "DIR VERB".
const fakeEnv = "SMCGW_TEST_FAKE"

// TestFakeProgram is not a test: it is the program that the tests of the
// guardian start, as guardian and as daemon.
func TestFakeProgram(t *testing.T) {
	dir, verb, ok := strings.Cut(os.Getenv(fakeEnv), " ")
	if !ok {
		t.Skip("only run by other tests")
	}
	var level slog.LevelVar
	o := Options{
		Level:         &level,
		OpenHeartbeat: func(f *fdpass.File) Heartbeat { return fileHeartbeat{f.FD()} },
		Times:         Times{Tick: 20 * time.Millisecond, Backoff: 20 * time.Millisecond},
		Logger:        slog.New(slog.NewTextHandler(os.Stderr, nil)),
		Notify: func(state string) error {
			if verb == "level" {
				state += " " + level.Level().String()
			}
			_, err := fmt.Println("manager", os.Getpid(), state)
			return err
		},
	}
	if verb == "again" {
		o.OpenHeartbeat = func(f *fdpass.File) Heartbeat { return toldHeartbeat{fileHeartbeat{f.FD()}} }
	}
	ward, status, err := Supervise(context.Background(), o)
	if err != nil {
		fmt.Println("error:", err)
	}
	if ward == nil {
		os.Exit(status)
	}
	os.Exit(fakeDaemon(ward, dir, verb))
}

// fakeDaemon beats in a file and holds a pipe, as a real one holds its links.
func fakeDaemon(w *Ward, dir, verb string) int {
	if verb == "early" { // signals end it until the test says so
		fmt.Println("starting")
		_, _ = os.ReadFile(filepath.Join(dir, "go"))
		time.Sleep(300 * time.Millisecond)
	}
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	switch verb {
	case "fail":
		return 3
	case "panic":
		go panic("as asked by a test") // which the test framework does not see
		select {}
	}
	f, err := unix.Open(filepath.Join(dir, "beat"), unix.O_RDWR|unix.O_CREAT|unix.O_CLOEXEC, 0o600)
	hold, errHold := unix.Open(filepath.Join(dir, "fifo"), unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err := errors.Join(err, errHold, w.Protect(fdpass.Own(f), []*fdpass.File{fdpass.Own(hold)})); err != nil {
		fmt.Println("error:", err)
		return 1
	}
	fmt.Println("protected", os.Getpid())
	if verb == "notify" {
		fmt.Println("too long:", w.Notify(strings.Repeat("x", maxNotify+1)) != nil)
		if err := errors.Join(w.Notify("READY=1"), w.Notify("MAINPID=7")); err != nil {
			fmt.Println("error:", err)
		}
	}
	if verb == "level" {
		fmt.Println("level:", errors.Join(w.Notify("before"), w.SetLevel(slog.LevelDebug), w.Notify("behind")))
	}
	for i := uint64(1); ; i++ {
		if verb == "slow" && i == 5 { // for twice as long as one that is stuck
			for begun := time.Now(); time.Since(begun) < 800*time.Millisecond; {
			}
			fmt.Println("back")
		}
		if verb != "stuck" || i < 5 {
			fileHeartbeat{f}.beat(i)
		}
		select {
		case s := <-signals:
			fmt.Println("signal", s)
			if verb == "level" && s == syscall.SIGHUP {
				fmt.Println("level:", w.Notify("again"))
			}
			if verb == "again" && s == syscall.SIGHUP {
				protected := make(chan error, 1)
				go func() {
					protect := func() error { return w.Protect(fdpass.Own(f), []*fdpass.File{fdpass.Own(hold)}) }
					err := protect()
					for try := 0; err != nil && try < 10; try++ { // the next guardian had no processor in time, either
						err = protect()
					}
					protected <- err
				}()
				for answered := false; !answered; i++ {
					fileHeartbeat{f}.beat(i)
					select {
					case err := <-protected:
						fmt.Println("again:", err)
						answered = true
					case <-time.After(5 * time.Millisecond):
					}
				}
			}
			if s == syscall.SIGTERM {
				return finish(w, verb)
			}
		case <-time.After(5 * time.Millisecond):
		}
	}
}

func finish(w *Ward, verb string) int {
	if verb == "release" {
		if err := w.Release(); err != nil {
			fmt.Println("error:", err)
		}
		fmt.Println("released")
		time.Sleep(50 * time.Millisecond) // still beating no more: that must not matter
		w.Close()
	}
	return 4
}

// fakeRun is a fake program that runs.
type fakeRun struct {
	t      *testing.T
	dir    string
	cmd    *exec.Cmd
	out    *bufio.Scanner
	beat   fileHeartbeat
	fifo   *os.File // EOF when the last process that held it has ended
	daemon int
}

func startFake(t *testing.T, verb string) *fakeRun {
	t.Helper()
	dir := t.TempDir()
	beat, err := os.OpenFile(dir+"/beat", os.O_RDWR|os.O_CREATE, 0o600)
	require.NoError(t, err)
	require.NoError(t, unix.Mkfifo(dir+"/fifo", 0o600))
	require.NoError(t, unix.Mkfifo(dir+"/go", 0o600))
	fifo, err := os.OpenFile(dir+"/fifo", os.O_RDONLY|unix.O_NONBLOCK, 0)
	require.NoError(t, err)
	log, err := os.Create(dir + "/log")
	require.NoError(t, err)
	cmd := exec.Command("/proc/self/exe", "-test.run=^TestFakeProgram$")
	cmd.Env = append(os.Environ(), fakeEnv+"="+dir+" "+verb)
	cmd.Stderr = log
	pipe, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	r := &fakeRun{t: t, dir: dir, cmd: cmd, out: bufio.NewScanner(pipe), beat: fileHeartbeat{int(beat.Fd())}, fifo: fifo}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		if r.daemon != 0 {
			_ = syscall.Kill(r.daemon, syscall.SIGKILL)
		}
		_ = errors.Join(beat.Close(), fifo.Close(), log.Close())
		if t.Failed() {
			t.Log(r.log())
		}
	})
	return r
}

// log returns what the processes have logged.
func (r *fakeRun) log() string {
	b, err := os.ReadFile(r.dir + "/log")
	require.NoError(r.t, err)
	return string(b)
}

// lingers is what a guardian logs that keeps the steering for a moment.
const lingers = "steering kept for a moment"

// protected waits until the daemon is.
func (r *fakeRun) protected() *fakeRun {
	r.t.Helper()
	pid, ok := strings.CutPrefix(r.line(), "protected ")
	require.True(r.t, ok)
	var err error
	r.daemon, err = strconv.Atoi(pid)
	require.NoError(r.t, err)
	return r
}

func (r *fakeRun) line() string {
	r.t.Helper()
	require.True(r.t, r.out.Scan(), "the program has ended")
	return r.out.Text()
}

func (r *fakeRun) signal(pid int, s syscall.Signal) { require.NoError(r.t, syscall.Kill(pid, s)) }

// stopped waits for the heartbeat to be zeroed.
func (r *fakeRun) stopped() {
	r.t.Helper()
	require.Eventually(r.t, func() bool {
		v, err := r.beat.Read()
		return err == nil && v == 0
	}, patience, time.Millisecond)
}

// released waits until no process holds the fifo.
func (r *fakeRun) released() {
	r.t.Helper()
	require.NoError(r.t, r.fifo.SetReadDeadline(time.Now().Add(patience)))
	_, err := r.fifo.Read(make([]byte, 1))
	require.ErrorIs(r.t, err, io.EOF)
}

// status waits for the end of the first process.
func (r *fakeRun) status() int {
	r.t.Helper()
	for r.out.Scan() {
	}
	err := r.cmd.Wait()
	if _, exited := errors.AsType[*exec.ExitError](err); !exited {
		require.NoError(r.t, err)
	}
	return r.cmd.ProcessState.ExitCode()
}

// What the daemon says reaches the service manager from the process that it has started,
// in order.
func TestNotify(t *testing.T) {
	r := startFake(t, "notify").protected()
	require.Equal(t, "too long: true", r.line())
	for _, state := range []string{"READY=1", "MAINPID=7"} {
		require.Equal(t, fmt.Sprintf("manager %d %s", r.cmd.Process.Pid, state), r.line())
	}
	r.signal(r.cmd.Process.Pid, syscall.SIGTERM)
	require.Equal(t, 4, r.status())
}

// The guardian logs from the level on that the daemon says, and so does one in its place.
func TestLevel(t *testing.T) {
	r := startFake(t, "level").protected()
	pid := r.cmd.Process.Pid
	lines := []string{r.line(), r.line(), r.line()} // of two processes
	require.ElementsMatch(t, []string{fmt.Sprintf("manager %d before INFO", pid), fmt.Sprintf("manager %d behind DEBUG", pid), "level: <nil>"}, lines)
	r.signal(pid, syscall.SIGKILL)
	next := r.guardian()
	require.Eventually(t, func() bool { return guards(next) }, 30*time.Second, time.Millisecond)
	r.signal(next, syscall.SIGHUP)
	require.Equal(t, "signal hangup", r.line())
	require.ElementsMatch(t, []string{fmt.Sprintf("manager %d again DEBUG", next), "level: <nil>"}, []string{r.line(), r.line()})
	r.signal(next, syscall.SIGTERM)
}

func TestADaemonThatIsKilled(t *testing.T) {
	r := startFake(t, "run").protected()
	killed := time.Now()
	r.signal(r.daemon, syscall.SIGKILL)
	r.stopped()
	r.released()
	lingered := time.Since(killed)
	require.Greater(t, lingered, 700*time.Millisecond, "the steering must outlive the daemon")
	t.Logf("the steering outlives it by %v", lingered)
	require.Contains(t, r.log(), lingers)
	require.Equal(t, 1, r.status())
}

func TestADaemonThatIsStuckIsKilled(t *testing.T) {
	r := startFake(t, "stuck").protected()
	r.released()
	v, err := r.beat.Read()
	require.NoError(t, err)
	require.Zero(t, v)
	require.Equal(t, 1, r.status())
}

// A daemon that computes is slow, and lives for a while longer.
func TestADaemonThatIsSlowLives(t *testing.T) {
	r := startFake(t, "slow").protected()
	require.Equal(t, "back", r.line())
	r.signal(r.daemon, syscall.SIGTERM)
	require.Equal(t, "signal terminated", r.line())
	require.Equal(t, 4, r.status())
}

func TestADaemonThatIsStoppedIsKilled(t *testing.T) {
	r := startFake(t, "run").protected()
	r.signal(r.daemon, syscall.SIGSTOP)
	r.released()
	require.Equal(t, 1, r.status())
}

func TestTheStatusIsPassedOn(t *testing.T) {
	require.Equal(t, 3, startFake(t, "fail").status())
	r := startFake(t, "run").protected()
	r.signal(r.daemon, syscall.SIGTERM)
	require.Equal(t, 4, r.status())
}

// The status of a panic is Go's own, 2, and means something else of this program.
func TestAPanicIsAFailure(t *testing.T) {
	r := startFake(t, "panic")
	require.Equal(t, "error: daemon ended by a panic or a fatal error; standard error has the trace", r.line())
	require.Equal(t, 1, r.status())
}

func TestSignalsAreForwardedOnce(t *testing.T) {
	r := startFake(t, "run").protected()
	require.Equal(t, "exe-guardian", comm(t, r.cmd.Process.Pid))
	require.Equal(t, "exe", comm(t, r.daemon))
	for sig, name := range map[syscall.Signal]string{syscall.SIGINT: "interrupt", syscall.SIGHUP: "hangup"} {
		r.signal(r.cmd.Process.Pid, sig)
		require.Equal(t, "signal "+name, r.line())
	}
	r.signal(r.cmd.Process.Pid, syscall.SIGTERM)
	require.Equal(t, "signal terminated", r.line())
	require.Equal(t, 4, r.status())
}

// Signals may come before the daemon catches them: SIGHUP is kept for it, and one that ends
// it is no failure.
func TestSignalsAtTheStart(t *testing.T) {
	r := startFake(t, "early")
	require.Equal(t, "starting", r.line())
	r.signal(r.cmd.Process.Pid, syscall.SIGHUP)
	require.NoError(t, os.WriteFile(r.dir+"/go", nil, 0))
	r.protected()
	require.Equal(t, "signal hangup", r.line())
	r.signal(r.cmd.Process.Pid, syscall.SIGTERM)
	require.Equal(t, "signal terminated", r.line())
	require.Equal(t, 4, r.status(), "the daemon's own")

	r = startFake(t, "early")
	require.Equal(t, "starting", r.line())
	r.signal(r.cmd.Process.Pid, syscall.SIGTERM)
	require.Zero(t, r.status())
}

// comm is the name of a process in ps.
func comm(t *testing.T, pid int) string {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	require.NoError(t, err)
	return strings.TrimSpace(string(b))
}

func TestACleanStopIsReleasedAtOnce(t *testing.T) {
	r := startFake(t, "release").protected()
	r.signal(r.cmd.Process.Pid, syscall.SIGTERM)
	require.Equal(t, "signal terminated", r.line())
	require.Equal(t, "released", r.line())
	require.Equal(t, 4, r.status())
	require.NotContains(t, r.log(), lingers, "nothing is held: nobody waits")
}

func TestAGuardianThatIsKilledIsReplaced(t *testing.T) {
	r := startFake(t, "run").protected()
	r.signal(r.cmd.Process.Pid, syscall.SIGKILL)
	for range 3 { // and so are its successors
		g := r.guardian()
		r.signal(g, syscall.SIGKILL)
		require.Eventually(t, func() bool { return zombie(g) }, 30*time.Second, time.Millisecond)
	}
	last := r.guardian()
	require.Eventually(t, func() bool { return guards(last) }, 30*time.Second, time.Millisecond)
	require.NoError(t, syscall.Kill(r.daemon, 0), "the daemon lives on")
	killed := time.Now()
	r.signal(r.daemon, syscall.SIGKILL)
	r.stopped()
	r.released()
	require.Greater(t, time.Since(killed), 700*time.Millisecond)
	require.Eventually(t, func() bool { return zombie(last) }, 30*time.Second, 5*time.Millisecond)
}

func TestANewGuardianForwardsSignals(t *testing.T) {
	r := startFake(t, "release").protected()
	r.signal(r.cmd.Process.Pid, syscall.SIGKILL)
	last := r.guardian()
	require.Eventually(t, func() bool { return guards(last) }, 30*time.Second, time.Millisecond)
	r.signal(last, syscall.SIGTERM)
	require.Equal(t, "signal terminated", r.line())
	require.Equal(t, "released", r.line())
	r.released()
}

// TestAGuardianThatStoodStill: one that did not answer has been replaced. When it goes on it holds nothing any more, and leaves the
// heartbeat of the daemon, which lives, alone; it still passes signals and the status on.
func TestAGuardianThatStoodStill(t *testing.T) {
	r := startFake(t, "again").protected()
	first := r.cmd.Process.Pid
	r.stop(first)
	r.signal(r.daemon, syscall.SIGHUP)
	require.Equal(t, "signal hangup", r.line())
	require.Equal(t, "again: <nil>", r.line())
	next := r.guardian()
	require.True(t, guards(next))
	r.signal(first, syscall.SIGCONT)
	require.Eventually(t, func() bool { return !guards(first) }, patience, time.Millisecond)
	r.signal(first, syscall.SIGTERM)
	require.Equal(t, "signal terminated", r.line())
	for range 2 { // the first to say is the one that guards
		require.Equal(t, fmt.Sprintf("stopped by %d", next), r.line())
	}
	r.released()
	require.Equal(t, 4, r.status())
}

// TestAStartedGuardianThatStoodStill: one that the daemon has started ends when it is replaced.
func TestAStartedGuardianThatStoodStill(t *testing.T) {
	r := startFake(t, "again").protected()
	r.signal(r.cmd.Process.Pid, syscall.SIGKILL)
	still := r.guardian()
	require.Eventually(t, func() bool { return guards(still) }, patience, time.Millisecond)
	t.Cleanup(func() { _ = syscall.Kill(still, syscall.SIGKILL) })
	r.stop(still)
	r.signal(r.daemon, syscall.SIGHUP)
	require.Equal(t, "signal hangup", r.line())
	require.Equal(t, "again: <nil>", r.line())
	require.Eventually(t, func() bool { return zombie(still) }, patience, time.Millisecond)
	next := r.guardian()
	require.True(t, guards(next))
	r.signal(next, syscall.SIGTERM)
	require.Equal(t, "signal terminated", r.line())
	r.released()
}

// stop has a process stand still, and waits until each of its threads does.
func (r *fakeRun) stop(pid int) {
	r.t.Helper()
	r.signal(pid, syscall.SIGSTOP)
	require.Eventually(r.t, func() bool {
		tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", pid))
		return len(tasks) > 0 && !slices.ContainsFunc(tasks, func(dir string) bool { return threadState(dir) != "T" })
	}, patience, time.Millisecond)
}

// guardian waits for a child of the daemon that lives.
func (r *fakeRun) guardian() int {
	r.t.Helper()
	var pid int
	require.Eventually(r.t, func() bool {
		for _, p := range procfs.Children(r.daemon) {
			if isGuardian(p) && !zombie(p) {
				pid = p
				return true
			}
		}
		return false
	}, 30*time.Second, time.Millisecond)
	return pid
}

// zombie reports whether the process has ended, reaped or not.
func zombie(pid int) bool {
	state := procfs.StatOf(pid).State()
	return state == "" || state == "Z"
}

// isGuardian reports whether the process was started as a guardian. Children
// that have not got that far look like their parent, with its files.
func isGuardian(pid int) bool {
	env, _ := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
	return strings.Contains(string(env), process.RoleEnv+"="+roleGuardian)
}

// guards reports whether the guardian has its files.
func guards(pid int) bool {
	fds, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	for _, fd := range fds {
		if target, err := os.Readlink(fd); err == nil && filepath.Base(target) == "beat" {
			return true
		}
	}
	return false
}

func TestACancelledGuardianEndsItsDaemonAndLeavesNothing(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	ctx, cancel := context.WithCancel(t.Context())
	dir := t.TempDir()
	require.NoError(t, unix.Mkfifo(dir+"/fifo", 0o600))
	fifo, err := unix.Open(dir+"/fifo", unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	require.NoError(t, err)
	defer unix.Close(fifo)
	o := Options{
		Args: []string{"smcgw", "-test.run=^TestFakeProgram$"}, Env: []string{fakeEnv + "=" + dir + " release"},
		OpenHeartbeat: func(f *fdpass.File) Heartbeat { return fileHeartbeat{f.FD()} },
	}
	go func() {
		defer cancel()
		for begun := time.Now(); time.Since(begun) < 30*time.Second; time.Sleep(time.Millisecond) {
			if _, err := unix.Read(fifo, make([]byte, 1)); err == unix.EAGAIN { // the daemon holds it
				return
			}
		}
	}()
	before := len(leak.OpenFiles())
	ward, status, err := Supervise(ctx, o)
	require.NoError(t, err)
	require.Nil(t, ward)
	require.Equal(t, 4, status)
	require.LessOrEqual(t, len(leak.OpenFiles()), before) // finalizers may have closed others
}

// FuzzPacket: daemon and guardian trust each other, but either may be of
// another version after an upgrade: what cannot be a message is an error, and no
// file that came with it stays open.
func FuzzPacket(f *testing.F) {
	f.Add([]byte{msgProtect}, uint8(2))
	f.Add([]byte{msgHold, 1, 2, 3}, uint8(fdpass.MaxFiles))
	f.Add([]byte{msgAck}, uint8(0))
	f.Add([]byte{}, uint8(1))
	f.Add([]byte{0xff}, uint8(250))
	f.Fuzz(func(t *testing.T, body []byte, files uint8) {
		near, far, err := socketPair()
		require.NoError(t, err)
		defer near.Close()
		defer far.Close()
		end, file, err := os.Pipe()
		require.NoError(t, err)
		defer end.Close()
		fds := make([]int, min(int(files), 250)) // what the kernel takes
		for i := range fds {
			fds[i] = int(file.Fd())
		}
		var oob []byte
		if len(fds) > 0 {
			oob = unix.UnixRights(fds...)
		}
		sent := unix.Sendmsg(int(far.Fd()), body[:min(len(body), 4096)], oob, nil, unix.MSG_DONTWAIT)
		require.NoError(t, far.Close())
		require.NoError(t, file.Close())
		if sent != nil {
			return
		}
		p, err := receivePacket(near)
		require.Equal(t, len(fds) > fdpass.MaxFiles || len(body) > 1+maxNotify, errors.Is(err, fdpass.ErrTooLong))
		if err != nil {
			requireEnd(t, end)
			return
		}
		if len(body) > 0 { // files alone take a byte along
			require.Equal(t, body[0], p.kind)
		}
		require.Len(t, p.files, len(fds))
		p.close()
		requireEnd(t, end)
	})
}

// requireEnd waits for the end of a pipe, which comes when no descriptor of its
// other end is left. A child that starts meanwhile has one until it executes its program.
func requireEnd(t *testing.T, pipe *os.File) {
	t.Helper()
	require.NoError(t, pipe.SetReadDeadline(time.Now().Add(10*time.Second)))
	_, err := pipe.Read(make([]byte, 1))
	require.ErrorIs(t, err, io.EOF, "a file that came with the packet is open")
}

// patience bounds the wait for what has to happen, on however slow a machine.
const patience = 30 * time.Second

// TestMain fails the run if a test left a goroutine or a descriptor behind.
func TestMain(m *testing.M) { os.Exit(leak.Main(m)) }
