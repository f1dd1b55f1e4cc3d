package e2e

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/lab/apps"
	"github.com/smcgw/smcgw/lab/testnet"
)

// privateApp is how real firewalls and container engines run on a test host: a shell script as the first process of
// PID, mount and cgroup namespaces of its own. It ends together with everything that it has started, and what it
// writes into the machine's directories disappears with it.
//
//	private [empty=DIR | bind=SOURCE:DIR | cgroup]... SCRIPT
var privateApp = apps.App{Name: "private", Run: runPrivate}

func runPrivate(args []string, _ func(apps.Event)) error {
	err := becomePrivate(args)
	fmt.Fprintln(os.Stderr, err)
	return err
}

func becomePrivate(args []string) error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("private mounts: %w", err)
	}
	if err := unix.Mount("proc", "/proc", "proc", 0, ""); err != nil {
		return fmt.Errorf("mount /proc: %w", err)
	}
	script := args[len(args)-1]
	for _, what := range args[:len(args)-1] {
		if err := private(what); err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
	}
	if err := os.Unsetenv(apps.Variable); err != nil {
		return err
	}
	return unix.Exec("/bin/sh", []string{"sh", "-euc", script}, os.Environ())
}

// private makes one thing private.
func private(what string) error {
	kind, where, _ := strings.Cut(what, "=")
	switch kind {
	case "empty":
		return unix.Mount("tmpfs", where, "tmpfs", 0, "mode=755")
	case "bind":
		from, to, _ := strings.Cut(where, ":")
		return unix.Mount(from, to, "", unix.MS_BIND, "")
	case "cgroup": // version 2, whatever the machine has, from the test's group downwards
		const root = "/sys/fs/cgroup"
		return errors.Join(
			unix.Unshare(unix.CLONE_NEWCGROUP),
			unix.Mount("tmpfs", root, "tmpfs", 0, "mode=755"),
			unix.Mount("cgroup2", root, "cgroup2", 0, ""))
	default:
		return fmt.Errorf("private %s: unknown", kind)
	}
}

// privately starts a script as the first process of namespaces of its own on a host, waits until it prints "ready",
// and returns it.
func privately(t *testing.T, h *testnet.Host, group *testnet.Cgroup, script string, private ...string) *testnet.Proc {
	t.Helper()
	cmd := h.AppCommand(context.Background(), append(append([]string{privateApp.Name}, private...), script)...)
	cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWNS | syscall.CLONE_NEWPID
	if group != nil {
		group.Hold(cmd)
	}
	p, err := h.StartCmd(cmd)
	require.NoError(t, err)
	t.Cleanup(func() { // before what it uses is removed
		_ = p.Kill()
		_ = p.Wait()
	})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	require.NoError(t, p.WaitOutput(ctx, "ready\n"))
	return p
}

// scratch makes a directory for the duration of the test. Its path is short enough for sockets.
func scratch(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "smcgw-host-") //nolint:usetesting // short: there are sockets in it
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	return dir
}

// copied returns a copy of a directory that a program may write to.
func copied(t *testing.T, from string) string {
	t.Helper()
	to := filepath.Join(scratch(t), filepath.Base(from))
	require.NoError(t, exec.CommandContext(t.Context(), "cp", "-a", from, to).Run())
	return to
}

// group makes a control group for the containers of a test.
func group(t *testing.T) *testnet.Cgroup {
	t.Helper()
	g, err := testnet.NewCgroup(filepath.Base(scratch(t)))
	require.NoError(t, err)
	t.Cleanup(func() {
		var below []string
		_ = filepath.WalkDir(g.Path, func(path string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() && path != g.Path {
				below = append([]string{path}, below...)
			}
			return nil
		})
		for _, path := range below {
			require.Eventually(t, func() bool { return os.Remove(path) == nil }, 5*time.Second, 10*time.Millisecond, path)
		}
		require.NoError(t, g.Close())
	})
	return g
}
