package fdpass

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// File is a descriptor that a process holds, passes on and finally closes. Unlike a non-blocking [os.File] it is not
// watched by the runtime's poller, so a TUN in a File does not wake the process with every packet. It is not safe for
// concurrent use.
type File struct{ fd int }

// Own returns a File that takes ownership of a descriptor.
func Own(fd int) *File { return &File{fd: fd} }

// Duplicate returns a close-on-exec duplicate of fd.
func Duplicate(fd int) (*File, error) {
	n, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("duplicate: %w", err)
	}
	return Own(n), nil
}

// FD returns the descriptor, which f still owns, or -1 if it is closed.
func (f *File) FD() int { return f.fd }

// Close closes the descriptor. Further calls return os.ErrClosed.
func (f *File) Close() error {
	if f.fd < 0 {
		return os.ErrClosed
	}
	fd := f.fd
	f.fd = -1
	return os.NewSyscallError("close", unix.Close(fd))
}

// MaxFiles is how many files a packet may have; the kernel passes at most 253.
const MaxFiles = 128

// Pair returns the two ends of a connection; far is a file for a child process.
func Pair(name string) (near, far *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("make socket pair: %w", err)
	}
	return os.NewFile(uintptr(fds[0]), name), os.NewFile(uintptr(fds[1]), name), nil
}

// Conn returns a connection for a socket, and closes its file.
func Conn(f *os.File) (*net.UnixConn, error) {
	c, err := net.FileConn(f)
	if err := errors.Join(err, f.Close()); err != nil {
		if c != nil {
			_ = c.Close()
		}
		return nil, err
	}
	u, ok := c.(*net.UnixConn)
	if !ok {
		_ = c.Close()
		return nil, fmt.Errorf("not a unix socket: %w", errors.ErrUnsupported)
	}
	return u, nil
}

// The kernel bounds how many files a user's processes have in flight (ETOOMANYREFS of unix(7)). Files are in flight
// only for a moment.
const (
	crowdedTries = 50
	crowdedPause = 10 * time.Millisecond
)

// Send sends a packet. The caller keeps owning the files. It waits up to half a second while the user's processes have
// too many files in flight.
func Send(c *net.UnixConn, body []byte, files ...*File) error {
	fds := make([]int, len(files))
	for i, f := range files {
		fds[i] = f.FD()
	}
	return SendFDs(c, body, fds)
}

// SendFDs is Send for plain descriptors.
func SendFDs(c *net.UnixConn, body []byte, fds []int) error {
	var oob []byte
	if len(fds) > 0 {
		oob = unix.UnixRights(fds...)
	}
	_, _, err := c.WriteMsgUnix(body, oob, nil)
	for try := 0; errors.Is(err, unix.ETOOMANYREFS) && try < crowdedTries; try++ {
		time.Sleep(crowdedPause)
		_, _, err = c.WriteMsgUnix(body, oob, nil)
	}
	if err != nil {
		return fmt.Errorf("send: %w", err)
	}
	return nil
}

// Why part of a received packet is missing.
var (
	// ErrTooLong means that the body did not fit, or that more than MaxFiles files came. The kernel closed the rest.
	ErrTooLong = errors.New("packet is too long")
	// ErrNoDescriptor means that this process has too few free descriptors for the files. The kernel closed the rest.
	ErrNoDescriptor = fmt.Errorf("files of a packet: %w", unix.EMFILE)
)

// Receive waits for a packet and reads it into body. It returns io.EOF when the other end has been closed. The caller
// owns the descriptors, which are close-on-exec. cut says why part of the packet is missing, and is nil if none is; the
// next packet is not affected.
func Receive(c *net.UnixConn, body []byte) (n int, fds []int, cut, err error) {
	oob := make([]byte, unix.CmsgSpace(4*MaxFiles))
	n, oobn, flags, _, err := c.ReadMsgUnix(body, oob)
	if err == nil && n == 0 {
		err = io.EOF
	}
	msgs, errFiles := unix.ParseSocketControlMessage(oob[:oobn])
	for i := range msgs {
		got, err := unix.ParseUnixRights(&msgs[i])
		if err != nil {
			continue // not files
		}
		fds = append(fds, got...)
	}
	if err != nil { // an empty packet, which means io.EOF, may have files, too
		CloseFDs(fds)
		return 0, nil, nil, fmt.Errorf("receive: %w", err)
	}
	if errFiles != nil {
		return 0, nil, nil, fmt.Errorf("receive files: %w", errFiles)
	}
	switch {
	case flags&unix.MSG_TRUNC != 0, flags&unix.MSG_CTRUNC != 0 && len(fds) >= MaxFiles:
		cut = ErrTooLong
	case flags&unix.MSG_CTRUNC != 0:
		cut = ErrNoDescriptor
	}
	return n, fds, cut, nil
}

// CloseFDs closes descriptors.
func CloseFDs(fds []int) {
	for _, fd := range fds {
		_ = unix.Close(fd)
	}
}
