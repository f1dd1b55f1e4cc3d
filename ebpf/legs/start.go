package legs

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/internal/fdpass"
)

// connFD is the keeper's end of the connection.
const connFD = 3

// Start creates a network namespace and a keeper in it: this program, started again with args, the first of which is
// the program's name. It must call [Serve]. The returned file is the gateway's end of the connection, for [Open]; the
// keeper ends when its last duplicate is closed.
//
// A process with CAP_SYS_ADMIN creates the namespace directly. Without it, the namespace is created in a user
// namespace, if the host permits that. There the keeper has the one privilege that it needs, and none outside.
func Start(args []string) (*os.File, error) {
	near, far, err := fdpass.Pair("legs")
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrKeeper, err)
	}
	defer func() { _ = far.Close() }()
	err = start(args, far, &syscall.SysProcAttr{Setpgid: true, Cloneflags: unix.CLONE_NEWNET})
	if errors.Is(err, unix.EPERM) {
		err = start(args, far, inUserNamespace())
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%w: neither CAP_SYS_ADMIN nor a user namespace: %w", ErrKeeper, err), near.Close())
	}
	return near, nil
}

// Possible reports whether [Start] can get a namespace. It starts nothing: it executes a missing file, which fails only
// after the namespace has been created. It copies the process, which is slow if that has much memory.
func Possible() (err error) {
	for _, attr := range []*syscall.SysProcAttr{{Cloneflags: unix.CLONE_NEWNET}, inUserNamespace()} {
		_, err = os.StartProcess("/proc/self/none", []string{"none"}, &os.ProcAttr{Sys: attr})
		if !errors.Is(err, unix.EPERM) && !errors.Is(err, unix.ENOSPC) && !errors.Is(err, unix.EUSERS) {
			return nil
		}
	}
	return fmt.Errorf("%w: neither CAP_SYS_ADMIN nor a user namespace: %w", ErrKeeper, err)
}

// inUserNamespace returns attributes for a user namespace without mapped users, which needs no privilege. Ambient
// capabilities survive that such a user executes a program. CAP_SETPCAP is there to drop all the others.
func inUserNamespace() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{
		Setpgid: true, Cloneflags: unix.CLONE_NEWUSER | unix.CLONE_NEWNET,
		AmbientCaps: []uintptr{unix.CAP_NET_ADMIN, unix.CAP_SETPCAP},
	}
}

func start(args []string, far *os.File, attr *syscall.SysProcAttr) error {
	cmd := &exec.Cmd{
		Path: "/proc/self/exe", Args: args, Env: os.Environ(),
		Stderr: os.Stderr, ExtraFiles: []*os.File{far}, SysProcAttr: attr,
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	return cmd.Process.Release() // it ends when its connection does
}
