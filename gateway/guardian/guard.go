package guardian

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"slices"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/ebpf"
	"github.com/smcgw/smcgw/gateway/process"
	"github.com/smcgw/smcgw/internal/fdpass"
	"github.com/smcgw/smcgw/internal/procfs"
)

// guard is the guardian of one daemon. Its loop owns all fields; the other goroutines only
// wait for the kernel and report to it.
type guard struct {
	o     Options
	conn  *net.UnixConn
	pidfd int

	beat  Heartbeat // nil until protected
	held  []*fdpass.File
	last  time.Duration
	stale int                      // ticks since last changed
	busy  map[string]time.Duration // busyTimes of the daemon at the first stale tick
	ended bool                     // the daemon was killed

	protected bool // set once protected: the daemon catches signals by then
	hup       bool // a SIGHUP is kept until then
	told      bool // told to end before that

	notes chan string // messages for the service manager

	child    int              // the daemon, if it is a child of this process
	children <-chan os.Signal // some child has ended
}

// maxNotes bounds the messages waiting for a service manager that does not read.
const maxNotes = 16

// guardNewDaemon starts a daemon, guards it and returns its exit status.
func guardNewDaemon(ctx context.Context, o Options) (int, error) {
	signals := notifySignals()
	defer signal.Stop(signals)
	near, far, err := socketPair()
	if err != nil {
		return 1, err
	}
	inherit := []*os.File{far}
	keeper, err := process.InheritedLegs()
	if err == nil { // absent in tests of the guardian
		inherit = append(inherit, keeper)
		o.Env = append(slices.Clone(o.Env), process.LegsEnv+"="+strconv.Itoa(process.LegsFD))
	}
	cmd, pidfd, err := startSelf(o, roleDaemon, inherit...)
	closeFiles(inherit)
	if err != nil {
		_ = near.Close()
		return 1, err
	}
	children := make(chan os.Signal, 1)
	signal.Notify(children, syscall.SIGCHLD)
	defer signal.Stop(children)
	g := &guard{o: o, conn: near, pidfd: pidfd, child: cmd.Process.Pid, children: children}
	g.run(ctx, signals)
	return exitStatus(cmd, g.told)
}

// guardOldDaemon guards the daemon that started this process.
func guardOldDaemon(ctx context.Context, o Options) error {
	signals := notifySignals()
	defer signal.Stop(signals)
	conn, err := inheritedConn()
	if err != nil {
		return err
	}
	f, err := process.InheritedFile(pidFD, "pidfd")
	if err != nil {
		_ = conn.Close()
		return err
	}
	defer f.Close()
	pidfd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		_ = conn.Close()
		return fmt.Errorf("pidfd: %w", err)
	}
	g := &guard{o: o, conn: conn, pidfd: pidfd}
	g.run(ctx, signals)
	return nil
}

// notifySignals catches the signals that are passed on to the daemon.
func notifySignals() chan os.Signal {
	ch := make(chan os.Signal, 8)
	signal.Notify(ch, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	return ch
}

// panicStatus is the exit status of a Go program after a panic, a fatal error or SIGQUIT.
const panicStatus = 2

// exitStatus reaps the daemon and returns the status to exit with. The daemon's own status is
// passed on. Death by a signal becomes 1, because the program's statuses are a documented
// set. So does a panic: 2 would mean a malformed command line, which the guardian has already
// refused. A daemon that was told to end before it caught signals has ended in order.
func exitStatus(cmd *exec.Cmd, told bool) (int, error) {
	err := cmd.Wait()
	if ws, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		if told && (ws.Signal() == syscall.SIGTERM || ws.Signal() == syscall.SIGINT) {
			return 0, nil
		}
		return 1, fmt.Errorf("daemon ended by signal: %s", ws.Signal())
	}
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return 1, fmt.Errorf("wait for daemon: %w", err)
	}
	if cmd.ProcessState.ExitCode() == panicStatus {
		return 1, errors.New("daemon ended by a panic or a fatal error; standard error has the trace")
	}
	return cmd.ProcessState.ExitCode(), nil
}

// run guards until the daemon has ended and the steering has outlived it. It closes
// everything that the guard holds.
func (g *guard) run(ctx context.Context, signals <-chan os.Signal) {
	// One thread that mostly sleeps: the guardian must cost nothing.
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	exited := make(chan struct{})
	go waitPidfd(g.pidfd, exited)
	packets := make(chan packet)
	go g.receivePackets(packets)
	g.notes = make(chan string, maxNotes)
	go g.notify()
	g.loop(ctx, signals, exited, packets)
	g.outlive(packets)
	close(g.notes)
	_ = g.conn.Close()
	orphaned := len(g.held) > 0
	g.release()
	_ = unix.Close(g.pidfd)
	if orphaned {
		g.tidy()
	}
}

// tidy removes what the daemon could not remove.
func (g *guard) tidy() {
	if err := g.o.Tidy(); err != nil {
		g.o.Logger.Error("what the daemon left was not removed", "error", err)
	}
}

// loop guards while the daemon is alive.
func (g *guard) loop(ctx context.Context, signals <-chan os.Signal, exited <-chan struct{}, packets <-chan packet) {
	tick := time.NewTicker(g.o.Times.Tick)
	defer tick.Stop()
	stop := ctx.Done()
	for {
		select {
		case <-exited:
			return
		case p, ok := <-packets:
			if ok {
				g.handle(p)
				continue
			}
			packets = nil
			g.dismissed()
		case <-tick.C:
			g.check()
		case <-g.children:
			reapOthers(g.child)
		case s := <-signals:
			g.pass(s.(syscall.Signal))
		case <-stop:
			stop = nil
			g.pass(syscall.SIGTERM)
		}
	}
}

// dismissed handles the end of the connection. It is the first thing that ends when the
// daemon dies. A daemon that is still alive either has another guardian, which watches in
// place of this one, or has closed everything and is about to end.
func (g *guard) dismissed() {
	if leaves(daemonProc(g.pidfd)) {
		g.stopHeartbeat()
		return
	}
	g.release()
}

// outlive is the last second: no new connection is offered, and what the daemon's sockets
// still send is steered to its destination. It first reads the files that the daemon sent
// just before it died, until the receiver sees the end of the connection.
func (g *guard) outlive(packets <-chan packet) {
	g.stopHeartbeat()
	_ = g.conn.SetReadDeadline(time.Now().Add(g.o.Times.Tick))
	for p := range packets {
		g.handle(p)
	}
	g.stopHeartbeat()
	if len(g.held) > 0 {
		g.o.Logger.Info("daemon gone, steering kept for a moment", "linger", g.o.Times.Linger)
		time.Sleep(g.o.Times.Linger)
	}
}

func (g *guard) stopHeartbeat() {
	if g.beat == nil {
		return
	}
	if err := g.beat.Stop(); err != nil {
		g.o.Logger.Error("heartbeat not stopped", "error", err)
	}
}

// handle executes a request of the daemon. A malformed packet is dropped with its files: both
// ends are the same program.
func (g *guard) handle(p packet) {
	switch {
	case p.kind == msgHold:
		g.held = append(g.held, p.files...)
		return
	case p.kind == msgNotify && len(p.files) == 0:
		select {
		case g.notes <- p.text:
		default:
			g.o.Logger.Warn("service manager does not read", "state", p.text)
		}
		return
	case p.kind == msgLevel && len(p.files) == 0:
		g.setLevel(p.text)
		return
	case p.kind == msgProtect && len(p.files) > 0:
		g.beat = g.o.OpenHeartbeat(p.files[0])
		g.held = append(g.held, p.files...)
		g.last, g.stale = 0, 0
	case p.kind == msgRelease:
		g.release()
	default:
		p.close()
		return
	}
	if err := sendPacket(g.conn, packet{kind: msgAck}); err != nil {
		g.o.Logger.Debug("acknowledgement not sent", "error", err)
	}
	if p.kind == msgProtect && !g.protected {
		g.protected = true
		if g.hup {
			g.signal(syscall.SIGHUP)
		}
	}
}

func (g *guard) setLevel(text string) {
	var level slog.Level
	if err := level.UnmarshalText([]byte(text)); err != nil {
		g.o.Logger.Warn("level of the log not changed", "error", err)
		return
	}
	if g.o.Level != nil {
		g.o.Level.Set(level)
	}
}

// notify passes the daemon's messages to the service manager until the guardian ends.
func (g *guard) notify() {
	for state := range g.notes {
		if err := g.o.Notify(state); err != nil {
			g.o.Logger.Warn("service manager not told", "state", state, "error", err)
			continue
		}
		_ = sendPacket(g.conn, packet{kind: msgTold}) // if the daemon is gone, it needs no answer
	}
}

func (g *guard) release() {
	closeFiles(g.held)
	g.held, g.beat = nil, nil
}

// check counts ticks without a heartbeat. They are ticks of this process, so time during
// which the machine or the guardian was paused does not count.
func (g *guard) check() {
	if g.beat == nil {
		return
	}
	now, err := g.beat.Read()
	if err != nil {
		g.o.Logger.Error("heartbeat not read", "error", err)
		return
	}
	if now != g.last {
		g.last, g.stale = now, 0
		return
	}
	g.stale++
	if g.stale == 1 {
		g.busy = busyTimes(daemonProc(g.pidfd))
	}
	limit := g.o.Times.StuckTicks
	if g.last == 0 {
		limit *= 5 // starting
	}
	if g.ended || g.stale < limit {
		return
	}
	proc := daemonProc(g.pidfd)
	since := time.Duration(g.stale) * g.o.Times.Tick
	if busySince(proc, g.busy, since) >= since/2 && g.stale < slowTimes*limit {
		return
	}
	g.ended = true
	g.o.Logger.Error("daemon stuck, killed", "ticks", g.stale, "threads", threads(proc))
	g.signal(syscall.SIGKILL)
}

// slowTimes is the factor by which a daemon may take longer if its threads ran, waited for a
// processor, or were held by the kernel for at least half of the time. On a host with more
// work than processors such a daemon is just slow, and killing it would reset every
// connection that it carries.
const slowTimes = 5

// pass passes a signal on to the daemon. A daemon that has just been started does not catch
// signals yet, so SIGHUP, which must not end it, waits until it does.
func (g *guard) pass(s syscall.Signal) {
	if !g.protected {
		if s == syscall.SIGHUP {
			g.hup = true
			return
		}
		g.told = true
	}
	g.signal(s)
}

func (g *guard) signal(s syscall.Signal) {
	if err := unix.PidfdSendSignal(g.pidfd, s, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		g.o.Logger.Error("signal not passed on", "signal", s.String(), "error", err)
	}
}

// waitPidfd closes exited when the process has ended, which is after its last descriptor was
// closed. It blocks in the kernel rather than in the runtime's poller, which is the fastest
// way to notify the loop.
func waitPidfd(pidfd int, exited chan<- struct{}) {
	defer close(exited)
	fds := []unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}
	for {
		n, err := unix.Poll(fds, -1)
		if n > 0 || (err != nil && !errors.Is(err, unix.EINTR)) {
			return
		}
	}
}

// receivePackets passes packets on until the connection ends or a packet lacks files. In the
// latter case the guardian would hold less than the daemon believes; so it closes the
// connection, and the daemon, which gets no answer, starts another guardian.
func (g *guard) receivePackets(packets chan<- packet) {
	defer close(packets)
	for {
		p, err := receivePacket(g.conn)
		if errors.Is(err, fdpass.ErrNoDescriptor) || errors.Is(err, fdpass.ErrTooLong) {
			g.o.Logger.Error("daemon's files not kept", "error", err)
			_ = g.conn.Close()
		}
		if err != nil {
			return
		}
		packets <- p
	}
}

// mapHeartbeat is the heartbeat map of the programs.
type mapHeartbeat struct{ f *fdpass.File }

// Read implements Heartbeat.
func (m mapHeartbeat) Read() (time.Duration, error) { return ebpf.ReadHeartbeat(m.f) }

// Stop implements Heartbeat.
func (m mapHeartbeat) Stop() error { return ebpf.StopHeartbeat(m.f) }

// keptEnv carries Options.Keep to a guardian that replaces a dead one.
const keptEnv = "SMCGW_KEPT"

// Kept decodes Options.Keep of the daemon, in a guardian that the daemon started to replace a
// dead one. It returns false in all other processes.
func Kept(into any) (bool, error) {
	if os.Getenv(process.RoleEnv) != roleGuardian {
		return false, nil
	}
	if err := json.Unmarshal([]byte(os.Getenv(keptEnv)), into); err != nil {
		return true, fmt.Errorf("%s: %w", keptEnv, err)
	}
	return true, nil
}

// keep adds Options.Keep to the environment of such a guardian.
func (o Options) keep() (Options, error) {
	text, err := json.Marshal(o.Keep)
	if err != nil {
		return o, fmt.Errorf("%s: %w", keptEnv, err)
	}
	o.Env = append(slices.Clip(o.Env), keptEnv+"="+string(text))
	return o, nil
}

// reapOthers reaps children that have ended, except but, for which another goroutine waits:
// the keepers of the legs are children of the guardian, and in a container so is every
// orphaned process.
func reapOthers(but int) {
	for _, pid := range procfs.Children(os.Getpid()) {
		if pid != but {
			_, _ = unix.Wait4(pid, nil, unix.WNOHANG, nil)
		}
	}
}
