package testnet

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Cmd is an [exec.Cmd] whose process starts inside a host's network namespace, and is killed when the host is closed or
// the test process dies. Only the network namespace differs; mounts, users and process ids are those of the machine.
type Cmd struct {
	*exec.Cmd

	node *node
}

// Command prepares a process on the host. Set it up like an [exec.Cmd], but do not clear SysProcAttr.
func (h *Host) Command(ctx context.Context, name string, args ...string) *Cmd {
	cmd := h.node.command(ctx, name, args...)
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.cgroup != nil {
		h.cgroup.Hold(cmd)
	}
	if h.environment != nil {
		cmd.Env = h.environment(os.Environ())
	}
	return cmd
}

func (nd *node) command(ctx context.Context, name string, args ...string) *Cmd {
	c := exec.CommandContext(ctx, name, args...)
	c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	// A grandchild may keep our pipe open, so do not wait for it forever. But allow time for a reader that gets no
	// processor.
	c.WaitDelay = 10 * time.Second
	return &Cmd{Cmd: c, node: nd}
}

// Start starts the process; see [exec.Cmd.Start].
func (c *Cmd) Start() error { return c.node.th.do(c.Cmd.Start) }

// Run starts the process and waits for it; see [exec.Cmd.Run].
func (c *Cmd) Run() error {
	if err := c.Start(); err != nil {
		return err
	}
	return c.Wait()
}

// Output runs the process and returns what it printed; see [exec.Cmd.Output].
func (c *Cmd) Output() ([]byte, error) {
	var out bytes.Buffer
	c.Stdout = &out
	err := c.Run()
	return out.Bytes(), err
}

// CombinedOutput is Output including the standard error.
func (c *Cmd) CombinedOutput() ([]byte, error) {
	var out bytes.Buffer
	c.Stdout, c.Stderr = &out, &out
	err := c.Run()
	return out.Bytes(), err
}

// Run runs a program on the host and returns its standard output. An error includes its standard error.
func (h *Host) Run(ctx context.Context, name string, args ...string) (string, error) {
	cmd := h.Command(ctx, name, args...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("%s on %s: %w: %s", name, h.Name, err, strings.TrimSpace(errs.String()))
	}
	return out.String(), nil
}

// Proc is a process in the background of a host.
type Proc struct {
	// Name describes it in failure reports.
	Name string

	cmd   *Cmd
	stdin io.WriteCloser
	out   *transcript
	done  chan struct{}
	err   error // valid once done is closed
}

// Start starts a program in the background of the host. The output of both streams is kept. The program is killed with
// the host at the latest.
func (h *Host) Start(name string, args ...string) (*Proc, error) {
	return h.StartCmd(h.Command(context.Background(), name, args...))
}

// StartCmd starts a prepared command in the background of the host. Streams that the caller has not set are captured.
func (h *Host) StartCmd(cmd *Cmd) (*Proc, error) {
	p := &Proc{Name: strings.Join(cmd.Args, " "), cmd: cmd, out: newTranscript(), done: make(chan struct{})}
	if cmd.Stdout == nil {
		cmd.Stdout = p.out
	}
	if cmd.Stderr == nil {
		cmd.Stderr = p.out
	}
	if cmd.Stdin == nil {
		stdin, err := cmd.StdinPipe()
		if err != nil {
			return nil, fmt.Errorf("start %s: %w", p.Name, err)
		}
		p.stdin = stdin
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s on %s: %w", p.Name, h.Name, err)
	}
	go p.reap()
	h.mu.Lock()
	h.procs = append(h.procs, p)
	h.mu.Unlock()
	return p, nil
}

func (p *Proc) reap() {
	p.err = p.cmd.Wait()
	p.out.end()
	close(p.done)
}

// Pid returns the process id.
func (p *Proc) Pid() int { return p.cmd.Process.Pid }

// Done returns a channel that is closed when the process has ended.
func (p *Proc) Done() <-chan struct{} { return p.done }

// Wait waits for the process to end, and returns how it ended.
func (p *Proc) Wait() error {
	<-p.done
	return p.err
}

// Signal sends a signal. It returns nil if the process is gone.
func (p *Proc) Signal(sig os.Signal) error {
	err := p.cmd.Process.Signal(sig)
	if err == os.ErrProcessDone { //nolint:errorlint // documented to be returned as is
		return nil
	}
	return err
}

// Kill sends SIGKILL.
func (p *Proc) Kill() error { return p.Signal(os.Kill) }

// Stop ends the process with SIGTERM, and after the grace period with SIGKILL. It returns how the process ended.
func (p *Proc) Stop(grace time.Duration) error {
	_ = p.Signal(syscall.SIGTERM)
	select {
	case <-p.done:
	case <-time.After(grace):
		_ = p.Kill()
	}
	return p.Wait()
}

// Send writes one line to the standard input of the process.
func (p *Proc) Send(line string) error {
	if _, err := io.WriteString(p.stdin, line+"\n"); err != nil {
		return fmt.Errorf("send to %s: %w", p.Name, err)
	}
	return nil
}

// CloseInput closes the standard input of the process.
func (p *Proc) CloseInput() error { return p.stdin.Close() }

// Output returns everything that the process has printed so far, bounded to the last megabyte.
func (p *Proc) Output() string { return p.out.String() }

// WaitOutput waits until the process has printed a text.
func (p *Proc) WaitOutput(ctx context.Context, text string) error {
	if err := p.out.wait(ctx, text); err != nil {
		return fmt.Errorf("%q from %s: %w; it printed:\n%s", text, p.Name, err, p.Output())
	}
	return nil
}

// transcript keeps the last part of a process's output.
type transcript struct {
	mu      sync.Mutex
	text    []byte
	ended   bool
	changed chan struct{} // closed and replaced at every change
}

const transcriptLimit = 1 << 20

func newTranscript() *transcript { return &transcript{changed: make(chan struct{})} }

// Write appends b. It never fails, so that capturing never stops a process.
func (t *transcript) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text = append(t.text, b...)
	if len(t.text) > transcriptLimit {
		t.text = append([]byte(nil), t.text[len(t.text)-transcriptLimit/2:]...)
	}
	t.wakeLocked()
	return len(b), nil
}

func (t *transcript) end() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ended = true
	t.wakeLocked()
}

func (t *transcript) wakeLocked() {
	close(t.changed)
	t.changed = make(chan struct{})
}

// String returns a copy of the text.
func (t *transcript) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.text)
}

// state returns whether the process has ended, and a channel for the next change. Call it before reading the text, or a
// change may be missed.
func (t *transcript) state() (changed <-chan struct{}, ended bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.changed, t.ended
}

func (t *transcript) wait(ctx context.Context, text string) error {
	for {
		changed, ended := t.state()
		switch {
		case strings.Contains(t.String(), text):
			return nil
		case ended:
			return io.ErrUnexpectedEOF
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
