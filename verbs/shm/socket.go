package shm

import (
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/internal/fdpass"
)

const socketSuffix = ".sock"

// nameOf returns the rendezvous name of a gateway: a file name in the directory.
func nameOf(gateway [16]byte) string { return hex.EncodeToString(gateway[:]) + socketSuffix }

// gatewayOf returns the gateway of a rendezvous name. Names come from the network, so nothing but 32 hexadecimal digits
// may become part of a path.
func gatewayOf(name string) (id [16]byte, err error) {
	digits, ok := strings.CutSuffix(name, socketSuffix)
	if !ok || len(digits) != 32 {
		return id, fmt.Errorf("%q: %w", name, ErrName)
	}
	if _, err := hex.Decode(id[:], []byte(digits)); err != nil || nameOf(id) != name {
		return id, fmt.Errorf("%q: %w", name, ErrName)
	}
	return id, nil
}

// directory is the rendezvous directory, held open. Sockets are addressed through it, which also keeps their paths
// short enough for sun_path.
type directory struct {
	fd int
}

// ErrFileSystem is a rendezvous directory that other kernels may share: a socket of a process under another kernel
// refuses calls here, and would be swept as that of a killed device.
var ErrFileSystem = errors.New("directory on a file system that hosts or virtual machines share")

// openAny opens a directory of any user.
func openAny(path string) (directory, error) {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return directory{-1}, fmt.Errorf("open rendezvous directory: %w", err)
	}
	var fs unix.Statfs_t
	if err = unix.Fstatfs(fd, &fs); err == nil && sharedByKernels(int64(fs.Type)) { //nolint:unconvert // int32 elsewhere
		err = ErrFileSystem
	}
	if err != nil {
		_ = unix.Close(fd)
		return directory{-1}, fmt.Errorf("rendezvous directory %s: %w", path, err)
	}
	return directory{fd}, nil
}

// sharedByKernels reports whether directories on file systems of that type may be shared by several kernels: those of
// networks, clusters and virtual machines. virtiofs is FUSE.
func sharedByKernels(kind int64) bool {
	const gfs2, lustre = 0x01161970, 0x0bd00bd0
	return slices.Contains([]int64{
		unix.FUSE_SUPER_MAGIC, unix.V9FS_MAGIC, unix.NFS_SUPER_MAGIC, unix.SMB_SUPER_MAGIC, unix.CIFS_SUPER_MAGIC,
		unix.SMB2_SUPER_MAGIC, unix.CEPH_SUPER_MAGIC, unix.OCFS2_SUPER_MAGIC, gfs2, lustre,
	}, kind)
}

func openDirectory(path string) (directory, error) {
	d, err := openAny(path)
	if err != nil {
		return d, err
	}
	if err := d.check(); err != nil {
		d.close()
		return directory{-1}, fmt.Errorf("rendezvous directory %s: %w", path, err)
	}
	return d, nil
}

// check refuses a directory in which another user could put sockets.
func (d directory) check() error {
	var st unix.Stat_t
	if err := unix.Fstat(d.fd, &st); err != nil {
		return fmt.Errorf("stat: %w", err)
	}
	if st.Mode&0o022 != 0 || !authorised(st.Uid) {
		return fmt.Errorf("mode %#o, owner %d: %w", st.Mode&0o7777, st.Uid, ErrCredentials)
	}
	return nil
}

func (d directory) path(name string) string { return fmt.Sprintf("/proc/self/fd/%d/%s", d.fd, name) }

func (d directory) close() { _ = unix.Close(d.fd) }

// authorised reports whether a process of that user may share memory with us.
func authorised(uid uint32) bool { return uid == 0 || uid == uint32(os.Geteuid()) }

// checkCredentials refuses a process of a user other than ours or root.
func checkCredentials(c *net.UnixConn) error {
	cred, err := credentials(c)
	if err != nil {
		return err
	}
	return checkUser(cred)
}

func checkUser(cred *unix.Ucred) error {
	if !authorised(cred.Uid) {
		return fmt.Errorf("uid %d: %w", cred.Uid, ErrCredentials)
	}
	return nil
}

// credentials returns the credentials of the process at the other end.
func credentials(c *net.UnixConn) (cred *unix.Ucred, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return nil, fmt.Errorf("peer credentials: %w", err)
	}
	ctlErr := raw.Control(func(fd uintptr) {
		cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	})
	if err == nil {
		err = ctlErr
	}
	if err != nil {
		return nil, fmt.Errorf("peer credentials: %w", err)
	}
	return cred, nil
}

// sendMessage sends a packet with fds attached.
func sendMessage(c *net.UnixConn, m message, fds ...int) error {
	if err := fdpass.SendFDs(c, m.encode(), fds); err != nil {
		return fmt.Errorf("rendezvous message: %w", err)
	}
	return nil
}

// receiveMessage receives a packet and its fds: exactly 1 + vectors of them, or none with a refusal. On an error no fd
// stays open.
func receiveMessage(c *net.UnixConn) (message, []int, error) {
	buf := make([]byte, messageSize+1)
	n, fds, cut, err := fdpass.Receive(c, buf)
	if err != nil {
		return message{}, nil, fmt.Errorf("rendezvous message: %w", err)
	}
	m, err := parseMessage(buf[:n])
	want := 0
	if m.kind != typeRefuse {
		want = 1 + int(m.vectors)
	}
	switch {
	case errors.Is(cut, fdpass.ErrNoDescriptor): // our fault, not the peer's
		err = cut
	case err == nil && (cut != nil || len(fds) != want):
		err = fmt.Errorf("%d file descriptors, want %d: %w", len(fds), want, ErrMessage)
	}
	if err != nil {
		fdpass.CloseFDs(fds)
		return message{}, nil, err
	}
	return m, fds, nil
}
