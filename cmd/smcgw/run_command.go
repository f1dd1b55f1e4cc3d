package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"syscall"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
)

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
