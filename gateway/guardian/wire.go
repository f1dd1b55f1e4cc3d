package guardian

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"syscall"

	"github.com/smcgw/smcgw/gateway/process"
	"github.com/smcgw/smcgw/internal/fdpass"
)

// Messages between daemon and guardian. Each is one packet, one byte long except for
// msgNotify and msgLevel; the first two kinds carry files. A list of files too long for one
// packet is sent as several msgHold followed by a msgProtect.
const (
	msgHold    = 'h' // daemon: hold these files too
	msgProtect = 'p' // daemon: the heartbeat, and files to hold; answered by msgAck
	msgRelease = 'r' // daemon: close all files; answered by msgAck
	msgNotify  = 'n' // daemon: pass the text to the service manager; answered by msgTold
	msgLevel   = 'l' // daemon: set the log level to the text
	msgTold    = 't' // guardian: passed to the manager
	msgAck     = 'a' // guardian: done
)

// maxNotify bounds the text of msgNotify.
const maxNotify = 512

// packet is one message.
type packet struct {
	kind  byte
	text  string // of msgNotify and msgLevel
	files []*fdpass.File
}

func (p packet) close() { closeFiles(p.files) }

func closeFiles[F io.Closer](files []F) {
	for _, f := range files {
		_ = f.Close()
	}
}

// socketPair makes a connection whose far end is a file for a child.
func socketPair() (*net.UnixConn, *os.File, error) {
	end, far, err := fdpass.Pair("guardian")
	if err != nil {
		return nil, nil, err
	}
	near, err := fileConn(end)
	if err != nil {
		_ = far.Close()
		return nil, nil, err
	}
	return near, far, nil
}

// fileConn makes a connection from a socket and closes the file.
func fileConn(f *os.File) (*net.UnixConn, error) {
	c, err := fdpass.Conn(f)
	if err != nil {
		return nil, fmt.Errorf("guardian socket: %w", err)
	}
	return c, nil
}

// inheritedConn returns the control socket inherited from the other process.
func inheritedConn() (*net.UnixConn, error) {
	f, err := process.InheritedFile(controlFD, "guardian socket")
	if err != nil {
		return nil, err
	}
	return fileConn(f)
}

// sendPacket sends one message. The caller keeps ownership of the files.
func sendPacket(c *net.UnixConn, p packet) error {
	if err := fdpass.Send(c, append([]byte{p.kind}, p.text...), p.files...); err != nil {
		return fmt.Errorf("guardian: %w", err)
	}
	return nil
}

// receivePacket waits for one message; io.EOF means that the other side has ended. For a
// message that lacks files the error is fdpass.ErrTooLong or fdpass.ErrNoDescriptor.
func receivePacket(c *net.UnixConn) (packet, error) {
	var body [1 + maxNotify]byte
	n, fds, cut, err := fdpass.Receive(c, body[:])
	if err != nil {
		return packet{}, err
	}
	if cut != nil {
		fdpass.CloseFDs(fds)
		return packet{}, fmt.Errorf("guardian: %w", cut)
	}
	p := packet{kind: body[0], text: string(body[1:max(n, 1)])}
	for _, fd := range fds {
		p.files = append(p.files, fdpass.Own(fd))
	}
	return p, nil
}

// startSelf starts this program again in a role. The process gets a process group of its own,
// so that a terminal's interrupt reaches only the guardian, which passes it on to the daemon
// once.
func startSelf(o Options, role string, inherit ...*os.File) (*exec.Cmd, int, error) {
	pidfd := -1
	cmd := &exec.Cmd{
		Path:        "/proc/self/exe",
		Args:        o.Args,
		Env:         append(append(os.Environ(), o.Env...), process.RoleEnv+"="+role),
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
