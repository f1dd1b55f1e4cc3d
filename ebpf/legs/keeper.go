package legs

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/internal/fdpass"
)

// Serve runs the keeper: it answers requests on the descriptor that [Start] has passed to it until the other end is
// closed. All threads of the process are in the namespace. Serve ignores signals that are sent to all processes of a
// gateway: SIGHUP does not end a gateway, and one that is stopping still serves its connections. spare is the command
// line of a process that must call [Stand].
func Serve(spare []string) error {
	ignoreSignals()
	unix.CloseOnExec(connFD)
	conn, err := controlConn(os.NewFile(connFD, "legs"))
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	for {
		req, fds, err := receive(conn)
		if errors.Is(err, io.EOF) || errors.Is(err, unix.ECONNRESET) {
			return nil
		}
		if err != nil {
			return err
		}
		fdpass.CloseFDs(fds) // requests have no descriptors
		if err := answer(conn, req, spare); err != nil {
			return err
		}
	}
}

// Stand runs the spare: it waits for a request, which comes when the keeper has died, and then becomes the keeper by
// executing this program with args, which must call [Serve]. It returns when the other end is closed.
func Stand(args []string) error {
	ignoreSignals()
	for {
		_, err := unix.Poll([]unix.PollFd{{Fd: connFD, Events: unix.POLLIN}}, -1)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return fmt.Errorf("%w: %w", ErrKeeper, os.NewSyscallError("poll", err))
		}
		n, _, err := unix.Recvfrom(connFD, make([]byte, 1), unix.MSG_PEEK|unix.MSG_DONTWAIT)
		switch {
		case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.EINTR):
			continue
		case err != nil || n == 0: // closed
			return nil
		}
		return fmt.Errorf("%w: %w", ErrKeeper, unix.Exec("/proc/self/exe", args, os.Environ()))
	}
}

func ignoreSignals() { signal.Ignore(unix.SIGHUP, unix.SIGINT, unix.SIGTERM) }

// answer handles a request. An error of the request is sent as the answer.
func answer(c *net.UnixConn, req message, spare []string) error {
	reply, err := do(req, spare)
	if err != nil {
		reply = failed(err)
	}
	defer func() { _ = reply.close() }()
	return sendOrSay(c, reply)
}

func failed(err error) message {
	f := failure{Text: err.Error()}
	_ = errors.As(err, &f.Errno)
	m, _ := encode(answerFailed, f) // a string and a number can always be encoded
	return m
}

// sendOrSay sends an answer. If its files cannot be sent, it sends a failure instead.
func sendOrSay(c *net.UnixConn, m message) error {
	err := send(c, m)
	if err == nil || len(m.files) == 0 {
		return err
	}
	return send(c, failed(err))
}

func do(req message, spare []string) (message, error) {
	switch req.op {
	case opHello:
		return hello()
	case opDevice:
		var r deviceRequest
		if err := req.decode(&r); err != nil {
			return message{}, err
		}
		index, err := setupDevice(r)
		if err != nil {
			return message{}, err
		}
		return encode(answerDone, deviceAnswer{Index: index})
	case opSockets:
		var r socketsRequest
		if err := req.decode(&r); err != nil {
			return message{}, err
		}
		return sockets(r)
	case opSpare:
		return startSpare(spare)
	default:
		return message{}, fmt.Errorf("request %q is unknown", req.op)
	}
}

// startSpare starts a spare in this namespace. The spare has the same parent as this process: the guardian, as long as
// that lives.
func startSpare(args []string) (message, error) {
	if len(args) == 0 {
		return message{}, errors.New("this keeper has no spare")
	}
	near, far, err := fdpass.Pair("legs")
	if err != nil {
		return message{}, err
	}
	defer func() { _, _ = near.Close(), far.Close() }()
	if err := start(args, far, &syscall.SysProcAttr{Setpgid: true, Cloneflags: unix.CLONE_PARENT}); err != nil {
		return message{}, fmt.Errorf("spare: %w", err)
	}
	f, err := fdpass.Duplicate(int(near.Fd()))
	if err != nil {
		return message{}, fmt.Errorf("spare: %w", err)
	}
	return message{op: answerDone, files: []*fdpass.File{f}}, nil
}

// hello returns the files that the gateway keeps.
func hello() (m message, err error) {
	m.op = answerDone
	ns, err := unix.Open("/proc/self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return message{}, fmt.Errorf("network namespace: %w", err)
	}
	m.files = append(m.files, fdpass.Own(ns))
	for range 2 {
		fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_SOCK_DIAG)
		if err != nil {
			return message{}, errors.Join(fmt.Errorf("sock_diag: %w", err), m.close())
		}
		m.files = append(m.files, fdpass.Own(fd))
	}
	return m, nil
}

// sockets returns sockets of a family.
func sockets(r socketsRequest) (m message, err error) {
	if r.Count < 1 || r.Count > MaxSockets {
		return message{}, fmt.Errorf("%d sockets: not 1 to %d", r.Count, MaxSockets)
	}
	m.op = answerDone
	for range r.Count {
		fd, err := socket(r.V6)
		if err != nil {
			if len(m.files) > 0 {
				return m, nil // some are better than none
			}
			return message{}, err
		}
		m.files = append(m.files, fdpass.Own(fd))
	}
	return m, nil
}

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
