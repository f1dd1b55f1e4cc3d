package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

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
