package world

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/smcgw/smcgw/inprocess/broker"
)

const socketName = "s"

// World is a broker, and runs programs with the library that use it. A nil World runs them natively.
type World struct {
	*broker.Broker // nil if the broker is a process of its own

	end     func() error // of the broker; it returns what Serve did
	dir     string
	library string // for LD_PRELOAD; empty: programs have it linked in
}

// Open starts a broker. library is preloaded into programs; it is empty for programs that have it linked in.
func Open(library string, c broker.Config) (*World, error) {
	dir, err := os.MkdirTemp("", "smcgw-in") // short enough for a socket
	if err != nil {
		return nil, err
	}
	w := &World{dir: dir, library: library}
	if err := w.start(c); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	return w, nil
}

func (w *World) start(c broker.Config) error {
	l, err := broker.Listen(w.socket(), 0o600)
	if err != nil {
		return err
	}
	w.Broker = broker.New(c)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- w.Serve(ctx, l) }()
	w.end = func() error {
		cancel()
		return <-done
	}
	return nil
}

// Replace ends the broker and starts another, while programs go on.
func (w *World) Replace(c broker.Config) error {
	if err := w.end(); err != nil {
		return err
	}
	return w.start(c)
}

func (w *World) socket() string { return filepath.Join(w.dir, socketName) }

// Close ends the broker. Programs that still run go on without it.
func (w *World) Close() error { return errors.Join(w.end(), os.RemoveAll(w.dir)) }

// env returns the environment for programs.
func (w *World) env() []string {
	if w == nil {
		return os.Environ()
	}
	env := append(os.Environ(), "SMCGW_SOCKET="+w.socket())
	if w.library != "" {
		env = append(env, "LD_PRELOAD="+w.library)
	}
	return env
}

// Run runs a program to its end, kills whatever it leaves behind, and returns its output.
func (w *World) Run(ctx context.Context, env []string, name string, args ...string) (string, error) {
	c := exec.CommandContext(ctx, name, args...)
	c.Env = append(w.env(), env...)
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	c.Cancel = func() error { return syscall.Kill(-c.Process.Pid, syscall.SIGKILL) }
	c.WaitDelay = 5 * time.Second
	var out bytes.Buffer
	c.Stdout, c.Stderr = &out, &out
	if err := c.Start(); err != nil {
		return "", err
	}
	err := c.Wait()
	_ = syscall.Kill(-c.Process.Pid, syscall.SIGKILL) // whatever it has left
	return out.String(), err
}

// Moved returns how many bytes the rings have moved, including those of connections that have ended.
func (w *World) Moved() uint64 {
	for range 500 { // the broker learns by the socket that a program has ended
		if w.Clients() == 0 {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	s := w.Snapshot()
	return s.Counters.MovedBytes + s.RingBytes()
}
