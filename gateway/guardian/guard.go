package guardian

import (
	"context"
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

	"github.com/smcgw/smcgw/gateway/process"
	"github.com/smcgw/smcgw/internal/fdpass"
)

// guard is the guardian of one daemon. Its loop owns all fields; goroutines
// beside it only wait for the kernel and tell it.
type guard struct {
	o     Options
	conn  *net.UnixConn
	pidfd int

	beat  Heartbeat // nil until protected
	held  []*fdpass.File
	last  time.Duration
	stale int                      // ticks since last changed
	busy  map[string]time.Duration // busyTimes of the daemon at the first of them
	ended bool                     // the daemon was killed

	protected bool // once at least: the daemon catches signals
	hup       bool // one is kept until then
	told      bool // to end, before that

	notes chan string // for the service manager

	child    int              // the daemon, if it is a child of this process
	children <-chan os.Signal // some child has ended
}

// maxNotes bounds what waits for a service manager that does not read.
const maxNotes = 16

// guardNewDaemon starts a daemon, guards it and returns its status.
func guardNewDaemon(ctx context.Context, o Options) (int, error) {
	signals := notifySignals()
	defer signal.Stop(signals)
	near, far, err := socketPair()
	if err != nil {
		return 1, err
	}
	inherit := []*os.File{far}
	keeper, err := process.InheritedLegs()
	if err == nil { // tests of the guardian have none
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

// notifySignals catches what is passed on to the daemon.
func notifySignals() chan os.Signal {
	ch := make(chan os.Signal, 8)
	signal.Notify(ch, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	return ch
}

// panicStatus is that with which Go's runtime ends a program: after a panic, a fatal
// error or SIGQUIT.
const panicStatus = 2

// exitStatus reaps the daemon. Its own status is passed on; a signal is 1,
// because the statuses of the program are a documented set, and so is a panic: 2 means a
// command line that was not understood, which the guardian has refused before. A daemon that
// was told to end before it caught signals has done so in order.
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

// run guards until the daemon has ended and the steering has outlived it. It
// closes everything the guard holds.
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

// tidy removes what the daemon could not.
func (g *guard) tidy() {
	if err := g.o.Tidy(); err != nil {
		g.o.Logger.Error("what the daemon left was not removed", "error", err)
	}
}

// loop is the guardian's life while the daemon lives.
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

// dismissed: the connection has ended. It does first of all when the daemon dies. A daemon that lives has another guardian, which
// watches in place of this one, or has closed everything and is about to end.
func (g *guard) dismissed() {
	if leaves(daemonProc(g.pidfd)) {
		g.stopHeartbeat()
		return
	}
	g.release()
}

// outlive is the last second: no new connection is offered, and what the
// daemon's sockets still send is steered to where it belongs. Files the daemon
// sent just before it died are still to be read; that ends when the receiver
// sees the end of the connection.
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

// handle does what the daemon asks for. A packet that makes no sense is
// dropped with its files: both ends are the same program.
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

// notify tells the service manager what the daemon says. It ends with the guardian.
func (g *guard) notify() {
	for state := range g.notes {
		if err := g.o.Notify(state); err != nil {
			g.o.Logger.Warn("service manager not told", "state", state, "error", err)
			continue
		}
		_ = sendPacket(g.conn, packet{kind: msgTold}) // a daemon that is gone needs no answer
	}
}

func (g *guard) release() {
	closeFiles(g.held)
	g.held, g.beat = nil, nil
}

// check counts the ticks without a beat. They are this process's own ticks: a
// machine that was paused, or a guardian that was, counts nothing meanwhile.
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

// slowTimes is how many times as long a daemon may take whose threads ran, waited for a processor, or were held by the kernel, for half
// of the time or more: on a host with more work than processors it is slow, and its death would reset every connection that it carries.
const slowTimes = 5

// pass passes on what the guardian was sent. A daemon that has just been started does not
// catch signals yet: SIGHUP, which ends no gateway, waits until it does.
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

// waitPidfd closes exited when the process has ended, which is after its last
// descriptor is closed. It sits in the kernel, not in the runtime's poller: the
// way from there to the loop is the shortest.
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

// receivePackets passes packets on until the connection ends, or lacks files: what would be
// kept then is less than the daemon believes, which gets no answer and starts another guardian.
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
