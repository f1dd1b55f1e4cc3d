package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/cmd/smcgw/internal/screen"
	"github.com/smcgw/smcgw/ebpf/witness"
	"github.com/smcgw/smcgw/gateway/admin"
	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/process"
	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/internal/procfs"
)

const (
	// runSchema names the format of runDoc.
	runSchema = "smcgw.run/v1"
	// runSettle is how long run waits for the last events after its command has ended.
	runSettle = time.Second
	// runPatience is how long the command may wait for a gateway that was not asked for explicitly.
	runPatience = 2 * time.Second
	// Exit statuses of a command that could not be started, as in a shell.
	exitNotExecutable = 126
	exitNotFound      = 127
	exitSignal        = 128 // plus the number of the signal
)

// runDoc is the document of run.
type runDoc struct {
	Schema string `json:"schema"`
	// Status is the exit status of the command.
	Status int `json:"status"`
	// Conns are the command's connections; a connection about which the gateway has reported nothing has no state.
	Conns []report.ConnInfo `json:"conns"`
	// More counts connections beyond Conns.
	More int `json:"more,omitempty"`
	// Obstacle is why its connections to other hosts could not be carried although there is a gateway.
	Obstacle string `json:"obstacle,omitempty"`
	// InProcess describes the connections that were to use shared memory.
	InProcess inProcessDoc `json:"in_process"`
	// carried means that a gateway has reported the connections.
	carried bool
}

func newRun(e *env) *cobra.Command {
	var report string
	var quiet bool
	c := &cobra.Command{
		Use:   "run [flags] -- CMD [ARG...]",
		Short: "Run one command with its connections promoted or carried",
		Long: `Run starts a command with the library: connections to programs of this host that have
it, too, go by shared memory once they have moved enough. The daemon brings the ends
together, by its policy; without a daemon a broker of this user does, which run starts
and which ends after its last program. When the command has ended, run says in a line
on standard error how many connections were promoted, or why none. A program that cannot
have the library (static, set-user-ID, Go) runs natively.

Run by root, where a gateway answers and cgroup2 is mounted, the command also has a
control group of its own, which the gateway knows from the start: its TCP connections to
other hosts are carried where the peer can, whatever the rules of this host say. The
never-list, the mode, the kill switch and the limits of the gateway still apply, and so
does the policy of the peer. Run then counts how they went; the file of --report has a
row for each. New connections of programs that outlive the command are no longer carried.

Signals sent to run are the command's: those that end a program, SIGUSR1, SIGUSR2 and
SIGWINCH. What a terminal sends it has anyway.

Exit status: that of the command; 126 and 127 if it cannot be executed or is not
there, 128 and the number of the signal that ended it.`,
		Args: func(c *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usagef("run: name a command: smcgw run -- CMD [ARG...]")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			var to io.WriteCloser = nopCloser{e.stderr}
			if report != "" { // before the command, whose status must not be lost to an invalid file name
				f, err := os.Create(report)
				if err != nil {
					return fmt.Errorf("--report: %w", err)
				}
				to = f
			}
			r, err := e.runCommand(cmd, args)
			if err == nil && (report != "" || !quiet) {
				if said := e.reportRun(r, to, report != ""); said != nil {
					fmt.Fprintln(e.stderr, "smcgw: --report:", said)
				}
			}
			if err = errors.Join(err, to.Close()); err == nil && r.Status != exitOK {
				return &exitError{r.Status, errSaid}
			}
			return err
		},
	}
	c.Flags().SetInterspersed(false)
	c.Flags().StringVar(&report, "report", "", "write what became of each connection to this file, and nothing to standard error")
	c.Flags().BoolVarP(&quiet, "quiet", "q", false, "tell nothing of the connections")
	return withSocket(e, verb(e, c))
}

// runCommand runs a command with the library and, if a gateway answers, in a cgroup that is opted in.
func (e *env) runCommand(cmd *cobra.Command, args []string) (r runDoc, err error) {
	p := e.newPreload(cmd.Context(), args[0])
	defer p.close()
	client := e.reach()
	defer client.Close()
	ctx, cancel := cmd.Context(), context.CancelFunc(func() {})
	if e.socket == "" {
		ctx, cancel = context.WithTimeout(ctx, runPatience)
	}
	_, err = client.Version(ctx)
	cancel()
	switch {
	case err == nil && os.Geteuid() == 0:
		r, err = e.carryCommand(cmd, args, client, p.environment())
	case err != nil && e.socket != "":
		return r, err // that gateway was asked for explicitly
	default:
		r.Status, err = runProcess(cmd, args, p.environment(), nil)
	}
	if err == nil {
		p.settle()
	}
	r.Schema, r.InProcess = runSchema, p.doc
	return r, err
}

// carryCommand runs a command in a cgroup that is opted in. If that is not possible it runs the command anyway, unless
// the gateway was asked for explicitly.
func (e *env) carryCommand(cmd *cobra.Command, args []string, client *admin.Client, environ []string) (r runDoc, err error) {
	native := func(why error) (runDoc, error) {
		if e.socket != "" {
			return r, why
		}
		r.Obstacle = why.Error()
		r.Status, err = runProcess(cmd, args, environ, nil)
		return r, err
	}
	g, err := newRunGroup()
	if err != nil {
		return native(err)
	}
	defer g.remove()
	seen, err := witness.Attach(g.dir)
	if err != nil {
		return native(err)
	}
	defer seen.Close()
	held, err := client.OptIn(cmd.Context(), g.optIn)
	if err != nil {
		return native(err)
	}
	defer held.Close()
	events := collectEvents(client, seen)
	r.Status, err = g.run(cmd, args, environ)
	if err == nil {
		err = seen.Settle()
	}
	if err == nil {
		r.Conns, r.More = events.settle(client)
	}
	events.stop()
	r.carried = true
	return r, err
}

// runGroup is the cgroup of a command.
type runGroup struct {
	dir    string
	parent string
	optIn  config.OptIn
}

// newRunGroup makes a cgroup below that of this process.
func newRunGroup() (*runGroup, error) {
	mount, err := process.CgroupMount()
	if err != nil {
		return nil, err
	}
	own, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return nil, fmt.Errorf("own cgroup: %w", err)
	}
	at, _ := procfs.Cgroup(string(own))
	at = filepath.Join("/", at)
	g := &runGroup{parent: filepath.Join(mount, at)}
	below := filepath.Join(at, "smcgw-run-"+strconv.Itoa(os.Getpid()))
	g.dir = filepath.Join(mount, below)
	err = os.Mkdir(g.dir, 0o755)
	if errors.Is(err, os.ErrExist) && os.Remove(g.dir) == nil { // a run that was killed has left it
		err = os.Mkdir(g.dir, 0o755)
	}
	if err != nil {
		return nil, fmt.Errorf("cgroup of the command: %w", err)
	}
	var st unix.Stat_t
	if err := unix.Stat(g.dir, &st); err != nil {
		g.remove()
		return nil, fmt.Errorf("cgroup of the command: %w", err)
	}
	g.optIn = config.OptIn{Cgroup: below, ID: st.Ino}
	return g, nil
}

// remove moves processes left behind by the command to the parent cgroup, and removes this one.
func (g *runGroup) remove() {
	for range 100 {
		left, _ := os.ReadFile(filepath.Join(g.dir, "cgroup.procs"))
		for pid := range strings.FieldsSeq(string(left)) {
			_ = os.WriteFile(filepath.Join(g.parent, "cgroup.procs"), []byte(pid), 0)
		}
		if err := os.Remove(g.dir); err == nil || errors.Is(err, os.ErrNotExist) {
			return
		}
		time.Sleep(10 * time.Millisecond) // an ending process is still counted
	}
}

// run runs the command, which starts in the cgroup, until it ends.
func (g *runGroup) run(of *cobra.Command, args, environ []string) (int, error) {
	at, err := os.Open(g.dir)
	if err != nil {
		return 0, fmt.Errorf("cgroup of the command: %w", err)
	}
	defer at.Close()
	return runProcess(of, args, environ, &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(at.Fd())})
}

// runEvents collects the gateway's events about the connections of a command.
type runEvents struct {
	seen   *witness.Witness
	cancel context.CancelFunc
	done   chan struct{}

	mu   sync.Mutex // guards last
	last map[witness.Connection]report.ConnInfo
}

// maxUnmatched bounds the events that are kept before their connection is known.
const maxUnmatched = 4096

// collectEvents starts to collect events of connections.
func collectEvents(client *admin.Client, seen *witness.Witness) *runEvents {
	ctx, cancel := context.WithCancel(context.Background())
	r := &runEvents{seen: seen, cancel: cancel, done: make(chan struct{}), last: map[witness.Connection]report.ConnInfo{}}
	ready := make(chan struct{})
	once := sync.OnceFunc(func() { close(ready) })
	go func() {
		defer close(r.done)
		defer once()
		_ = client.Watch(ctx, report.ConnFilter{}, once, r.note) // ends with the daemon
	}()
	<-ready
	return r
}

func (r *runEvents) note(ev report.Event) error {
	if ev.Conn == nil {
		return nil
	}
	at := connectionOf(ev.Conn)
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.last) < maxUnmatched || r.seen.Has(at) {
		r.last[at] = *ev.Conn
	}
	return nil
}

func connectionOf(c *report.ConnInfo) witness.Connection {
	return witness.Connection{Local: c.Local, Remote: c.Remote}
}

// settle waits briefly until the gateway has reported the end of every connection, and lists them. Connections that
// continue are listed in their current state.
func (r *runEvents) settle(client *admin.Client) (conns []report.ConnInfo, more int) {
	ctx, cancel := context.WithTimeout(context.Background(), runSettle)
	defer cancel()
	for {
		var open int
		conns, more, open = r.list()
		if open == 0 || pause(ctx, 20*time.Millisecond) != nil {
			break
		}
	}
	live, err := client.Conns(context.Background(), report.ConnQuery{})
	if err != nil {
		return conns, more
	}
	for i := range conns {
		if at := slices.IndexFunc(live.Conns, func(l report.ConnInfo) bool { return connectionOf(&l) == connectionOf(&conns[i]) }); at >= 0 {
			conns[i] = live.Conns[at]
		}
	}
	return conns, more
}

// list joins connections and events; open counts those whose end is not known.
func (r *runEvents) list() (conns []report.ConnInfo, more, open int) {
	begun, more := r.seen.Connections()
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range begun {
		info, ok := r.last[c]
		if !ok {
			info = report.ConnInfo{Proto: "tcp", Local: c.Local, Remote: c.Remote}
		}
		if info.End == "" && !c.Remote.Addr().IsLoopback() {
			open++
		}
		conns = append(conns, info)
	}
	return conns, more, open
}

func (r *runEvents) stop() {
	r.cancel()
	<-r.done
}

// reportRun reports the connections; each means in a row of its own.
func (e *env) reportRun(r runDoc, out io.Writer, each bool) error {
	if r.Conns == nil {
		r.Conns = []report.ConnInfo{}
	}
	to := *e
	to.stdout = out
	if e.json {
		return to.printJSON(r)
	}
	text := "smcgw: " + r.InProcess.summary()
	if r.Obstacle != "" {
		text += "\nsmcgw: connections to other hosts are not carried: " + r.Obstacle
	}
	if _, err := fmt.Fprintln(out, text); err != nil || !r.carried {
		return printed(err)
	}
	if _, err := fmt.Fprintln(out, "smcgw: "+runSummary(r)); err != nil || !each || len(r.Conns) == 0 {
		return printed(err)
	}
	return to.list(screen.Listing{
		Rows: connRows(r.Conns, true, false), Wide: append(wideOfEnds(), "ID", "PROTO", "SIDE", "STATE", "RTT", "RETRANS"), Spare: spareOfConns(),
	})
}

// runSummary counts connections by result.
func runSummary(r runDoc) string {
	counts := map[string]uint64{}
	for i := range r.Conns {
		c := &r.Conns[i]
		switch {
		case c.Way == report.WayInProcess:
			counts["in process"]++
		case c.Carrier != "":
			counts["by "+string(c.Carrier)]++
		case c.Reason != "":
			counts["native ("+c.Reason+")"]++
		default:
			counts["not seen by the gateway"]++
		}
	}
	text := plural(len(r.Conns)+r.More, "connection")
	if len(counts) > 0 {
		text += ": " + listed(counts)
	}
	if r.More > 0 {
		text += fmt.Sprintf(", not followed %d", r.More)
	}
	return text
}

// fromTerminal are the signals that a terminal sends to both this process and its command; passedOn are those that this
// process forwards to the command.
var (
	fromTerminal = []os.Signal{syscall.SIGINT, syscall.SIGQUIT, syscall.SIGWINCH}
	passedOn     = append([]os.Signal{syscall.SIGTERM, syscall.SIGHUP, syscall.SIGUSR1, syscall.SIGUSR2}, fromTerminal...)
)

// runProcess runs a command until it ends. It forwards the signals of this process; the command ignores those that this
// process was started to ignore, as by nohup.
func runProcess(of *cobra.Command, args, environ []string, attr *syscall.SysProcAttr) (int, error) {
	c := exec.Command(args[0], args[1:]...)
	c.Stdin, c.Stdout, c.Stderr = of.InOrStdin(), of.OutOrStdout(), of.ErrOrStderr()
	c.Env, c.SysProcAttr = environ, attr
	signals := make(chan os.Signal, 2*len(passedOn))
	for _, s := range passedOn {
		if !signal.Ignored(s) { // the command would not ignore a signal that is caught here
			signal.Notify(signals, s)
		}
	}
	defer signal.Stop(signals)
	if err := c.Start(); err != nil {
		status := exitNotExecutable
		if errors.Is(err, exec.ErrNotFound) || errors.Is(err, os.ErrNotExist) {
			status = exitNotFound
		}
		return 0, &exitError{status, fmt.Errorf("run: %w", err)}
	}
	signal.Ignore(syscall.SIGPIPE) // the status must be the command's even if the report has no reader
	ended := make(chan error, 1)
	go func() { ended <- c.Wait() }()
	for {
		select {
		case s := <-signals:
			if !slices.Contains(fromTerminal, s) || !inForeground() {
				_ = c.Process.Signal(s)
			}
		case err := <-ended:
			return statusOf(c.ProcessState, err)
		}
	}
}

// inForeground reports whether the terminal's keys send signals to this process and its command.
func inForeground() bool {
	tty, err := os.Open("/dev/tty")
	if err != nil {
		return false
	}
	defer func() { _ = tty.Close() }()
	group, err := unix.IoctlGetInt(int(tty.Fd()), unix.TIOCGPGRP)
	return err == nil && group == unix.Getpgrp()
}

func statusOf(state *os.ProcessState, err error) (int, error) {
	if ws, ok := state.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		return exitSignal + int(ws.Signal()), nil
	}
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return 0, fmt.Errorf("run: %w", err)
	}
	return state.ExitCode(), nil
}
