package inprocess

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/inprocess/broker"
)

const (
	libraryDir = "../../inprocess/lib"
	programDir = "../../inprocess/lib/test"
)

var common = []string{"-std=gnu11", "-g", "-Wall", "-Wextra", "-Werror", "-pthread"}

// builtIn is the directory of built, empty where nothing was.
var builtIn string

// built are the library and the test programs, made once for all tests.
var built = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "smcgw-lib")
	if err != nil {
		return "", err
	}
	builtIn = dir
	sources, err := filepath.Glob(filepath.Join(libraryDir, "*.c"))
	if err != nil {
		return "", err
	}
	library := append([]string{"-O2", "-fPIC", "-fvisibility=hidden", "-shared", "-include", filepath.Join(libraryDir, "glibc.h"), "-o", filepath.Join(dir, "libsmcgw.so")}, sources...)
	if err := compile(library); err != nil {
		return "", err
	}
	programs, err := filepath.Glob(filepath.Join(programDir, "*.c"))
	for _, p := range programs {
		name := filepath.Base(p[:len(p)-len(".c")])
		err = compile([]string{"-O1", "-o", filepath.Join(dir, name), p})
		if err != nil {
			return "", err
		}
	}
	return dir, err
})

type compileError struct {
	args []string
	said string
	err  error
}

func (e *compileError) Error() string { return e.err.Error() + "\n" + e.said }

func compile(args []string) error {
	out, err := exec.Command("gcc", append(append([]string{}, common...), args...)...).CombinedOutput()
	if err != nil {
		return &compileError{args, string(out), err}
	}
	return nil
}

// file is one of what is built.
func file(t *testing.T, name string) string {
	t.Helper()
	if _, err := exec.LookPath("gcc"); err != nil {
		t.Skip("no gcc")
	}
	dir, err := built()
	require.NoError(t, err)
	return filepath.Join(dir, name)
}

// world is a broker and the way to run programs with the library at it.
type world struct {
	*broker.Broker
	socket, library string
}

func newWorld(t *testing.T, th broker.Thresholds) *world {
	t.Helper()
	library := file(t, "libsmcgw.so")
	dir, err := os.MkdirTemp("", "smcgw-in") // short enough for a socket
	require.NoError(t, err)
	w := &world{broker.New(broker.Config{Thresholds: th}), filepath.Join(dir, "s"), library}
	l, err := broker.Listen(w.socket, 0o600)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- w.Serve(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-done)
		require.NoError(t, os.RemoveAll(dir))
	})
	return w
}

// env is what a program with the library is started with; nil is a native world's.
func (w *world) env() []string {
	if w == nil {
		return os.Environ()
	}
	return append(os.Environ(), "LD_PRELOAD="+w.library, "SMCGW_SOCKET="+w.socket)
}

// run runs a program with the library, or natively where w is nil, and returns what it says.
func (w *world) run(t *testing.T, within time.Duration, env []string, name string, args ...string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	c := exec.CommandContext(ctx, name, args...)
	c.Env = append(w.env(), env...)
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	c.Cancel = func() error { return syscall.Kill(-c.Process.Pid, syscall.SIGKILL) }
	c.WaitDelay = 5 * time.Second
	var out bytes.Buffer
	c.Stdout, c.Stderr = &out, &out
	err := c.Run()
	if c.Process != nil {
		_ = syscall.Kill(-c.Process.Pid, syscall.SIGKILL) // what it has left
	}
	return out.String(), err
}

// moved is what the rings have moved, of connections that have ended and of others.
func (w *world) moved() uint64 {
	for range 500 { // the broker learns of the end of a program by its socket
		if w.Clients() == 0 {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	s := w.Snapshot()
	n := s.Counters.MovedBytes
	for _, e := range s.Ends {
		n += e.Report.RxRing
	}
	return n
}
