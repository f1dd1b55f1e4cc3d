package gateway

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"syscall"

	"golang.org/x/sys/unix"
)

// Messages between daemon and guardian: one packet each, one byte long, with
// files attached to the first two. A list of files longer than a packet may
// carry comes as several msgHold before a msgProtect.
const (
	msgHold    = 'h' // daemon: keep these files too
	msgProtect = 'p' // daemon: the heartbeat, and files to keep; answered by msgAck
	msgRelease = 'r' // daemon: close all files; answered by msgAck
	msgAck     = 'a' // guardian: done
)

// maxPacketFiles is below the kernel's limit of 253 files per packet.
const maxPacketFiles = 128

// packet is one message.
type packet struct {
	kind  byte
	files []*os.File
}

func (p packet) close() { closeFiles(p.files) }

func closeFiles(files []*os.File) {
	for _, f := range files {
		_ = f.Close()
	}
}

// socketPair makes a connection of which the far end is a file for a child.
func socketPair() (*net.UnixConn, *os.File, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("make socket pair: %w", err)
	}
	far := os.NewFile(uintptr(fds[1]), "guardian")
	near, err := fileConn(os.NewFile(uintptr(fds[0]), "guardian"))
	if err != nil {
		_ = far.Close()
		return nil, nil, err
	}
	return near, far, nil
}

// fileConn makes a connection of a socket, whose file it closes.
func fileConn(f *os.File) (*net.UnixConn, error) {
	defer f.Close()
	c, err := net.FileConn(f)
	if err != nil {
		return nil, fmt.Errorf("guardian socket: %w", err)
	}
	u, ok := c.(*net.UnixConn)
	if !ok {
		_ = c.Close()
		return nil, fmt.Errorf("guardian socket: %w", errNotInherited)
	}
	return u, nil
}

// inheritedConn is the control socket the other process left for this one.
func inheritedConn() (*net.UnixConn, error) {
	f, err := inheritedFile(controlFD, "guardian socket")
	if err != nil {
		return nil, err
	}
	return fileConn(f)
}

// sendPacket sends one message; the files stay the caller's.
func sendPacket(c *net.UnixConn, p packet) error {
	fds := make([]int, len(p.files))
	for i, f := range p.files {
		raw, err := f.SyscallConn() // not Fd: it would make the file blocking
		if err == nil {
			err = raw.Control(func(fd uintptr) { fds[i] = int(fd) })
		}
		if err != nil {
			return fmt.Errorf("file to hand over: %w", err)
		}
	}
	var oob []byte
	if len(fds) > 0 {
		oob = unix.UnixRights(fds...)
	}
	if _, _, err := c.WriteMsgUnix([]byte{p.kind}, oob, nil); err != nil {
		return fmt.Errorf("send to guardian: %w", err)
	}
	return nil
}

// receivePacket waits for one message; io.EOF when the other side has ended.
func receivePacket(c *net.UnixConn) (packet, error) {
	var body [1]byte
	oob := make([]byte, unix.CmsgSpace(4*maxPacketFiles))
	n, oobn, _, _, err := c.ReadMsgUnix(body[:], oob)
	if err == nil && n == 0 {
		err = io.EOF
	}
	if err != nil {
		return packet{}, fmt.Errorf("receive: %w", err)
	}
	p := packet{kind: body[0]}
	cmsgs, err := unix.ParseSocketControlMessage(oob[:oobn])
	if err != nil {
		return packet{}, fmt.Errorf("receive files: %w", err)
	}
	for i := range cmsgs {
		fds, err := unix.ParseUnixRights(&cmsgs[i])
		if err != nil {
			continue // not files
		}
		for _, fd := range fds {
			p.files = append(p.files, os.NewFile(uintptr(fd), "held"))
		}
	}
	return p, nil
}

// startSelf starts this program again in a role. The process gets a group of
// its own, so that a terminal's interrupt reaches the guardian alone and the
// daemon gets it once, from there.
func startSelf(o SuperviseOptions, role string, inherit ...*os.File) (*exec.Cmd, int, error) {
	pidfd := -1
	cmd := &exec.Cmd{
		Path:        "/proc/self/exe",
		Args:        o.Args,
		Env:         append(append(os.Environ(), o.Env...), roleEnv+"="+role),
		Stdin:       os.Stdin,
		Stdout:      os.Stdout,
		Stderr:      os.Stderr,
		ExtraFiles:  inherit,
		SysProcAttr: &syscall.SysProcAttr{Setpgid: true, PidFD: &pidfd},
	}
	if err := cmd.Start(); err != nil {
		return nil, -1, fmt.Errorf("start %s: %w", role, err)
	}
	if pidfd < 0 {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		return nil, -1, fmt.Errorf("start %s: %w", role, errors.ErrUnsupported)
	}
	return cmd, pidfd, nil
}
