package gateway

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// ErrAdminInUse is returned when another daemon lives on the admin socket.
var ErrAdminInUse = errors.New("admin socket in use by another daemon")

// adminGroup may read the admin socket, if the host has it.
const adminGroup = "smcgw"

// adminSocket is the listening admin socket and the lock that says whose it is.
type adminSocket struct {
	*net.UnixListener
	lock *os.File
	gid  uint32 // group of the socket, whose members may read
}

// listenAdminSocket binds path. A lock beside it, which the kernel drops with
// its owner, tells the socket of a dead daemon (replaced) from that of a live
// one (refused): a connection attempt alone cannot tell who comes first.
func listenAdminSocket(path string) (*adminSocket, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, fmt.Errorf("make directory of the admin socket: %w", err)
	}
	lock, err := lockFile(path + ".lock")
	if err != nil {
		return nil, err
	}
	l, gid, err := bindAdminSocket(path)
	if err != nil {
		_ = lock.Close()
		return nil, err
	}
	return &adminSocket{UnixListener: l, lock: lock, gid: gid}, nil
}

// lockFile takes the lock or says who has it. The file stays: removing it
// would let two daemons lock two files of the same name.
func lockFile(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open admin lock: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("%w (%s is locked)", ErrAdminInUse, path)
		}
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	return f, nil
}

// adminMode is the mode of the socket.
const adminMode = 0o660

// bindAdminSocket removes a dead socket and binds a new one that never has more
// rights than adminMode: bind takes the mode of the unbound socket's inode,
// less the umask, which the second call makes up for.
func bindAdminSocket(path string) (*net.UnixListener, uint32, error) {
	if err := removeDeadSocket(path); err != nil {
		return nil, 0, err
	}
	lc := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		var err error
		return errors.Join(c.Control(func(fd uintptr) { err = unix.Fchmod(int(fd), adminMode) }), err)
	}}
	l, err := lc.Listen(noDeadline, "unix", path)
	if err != nil {
		return nil, 0, fmt.Errorf("listen on admin socket: %w", err)
	}
	gid := giveToGroup(path)
	if err := os.Chmod(path, adminMode); err != nil {
		_ = l.Close()
		return nil, 0, fmt.Errorf("set mode of the admin socket: %w", err)
	}
	return l.(*net.UnixListener), gid, nil
}

// removeDeadSocket unlinks what no one listens on. Anything that is not a
// socket is not ours to remove.
func removeDeadSocket(path string) error {
	fi, err := os.Lstat(path)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("look at admin socket: %w", err)
	case fi.Mode().Type() != os.ModeSocket:
		return fmt.Errorf("admin socket: %s exists and is not a socket", path)
	}
	if c, err := net.DialTimeout("unix", path, time.Second); err == nil {
		_ = c.Close()
		return fmt.Errorf("%w (%s answers)", ErrAdminInUse, path)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove dead admin socket: %w", err)
	}
	return nil
}

// giveToGroup gives the socket to adminGroup where there is one and returns
// the group it has. Without the right to do so the socket keeps ours.
func giveToGroup(path string) uint32 {
	if g, err := user.LookupGroup(adminGroup); err == nil {
		if gid, err := strconv.Atoi(g.Gid); err == nil {
			_ = os.Lchown(path, -1, gid)
		}
	}
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return uint32(os.Getegid())
	}
	return st.Gid
}

// Close stops listening, removes the socket and drops the lock, in this order.
func (s *adminSocket) Close() error {
	return errors.Join(s.UnixListener.Close(), s.lock.Close())
}
