package admin

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/process"
)

// errAdminInUse is returned when another daemon is alive on the admin socket.
var errAdminInUse = errors.New("admin socket in use by another daemon: end that (smcgw drain), or replace it (smcgw up --takeover)")

// adminSocket is the listening admin socket and the lock that says which daemon owns it.
type adminSocket struct {
	*net.UnixListener
	path string // where it was created
	gid  uint32 // group of the socket, whose members may read
	file os.FileInfo

	aside atomic.Bool // moved beside its path while this gateway drains; written under mu

	mu   sync.Mutex // held while it is moved; guards lock
	lock *os.File   // nil while it is aside
}

// at returns the path where it is found.
func (s *adminSocket) at() string {
	if s.aside.Load() {
		return s.path + config.DrainingSuffix
	}
	return s.path
}

// listenAdminSocket binds path. A lock file beside it, whose lock the kernel drops with its
// owner, distinguishes the socket of a dead daemon, which is replaced, from that of a live
// one, for which it fails. A connection attempt alone could not decide between two daemons
// starting at once. A successor replaces the socket of a live daemon that has given up its
// lock.
func listenAdminSocket(path string, successor bool) (*adminSocket, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, fmt.Errorf("make directory of the admin socket: %w", err)
	}
	patience := deathPatience
	if successor { // the other daemon is about to release it
		patience = successorPatience
	}
	lock, err := awaitLock(path+".lock", patience)
	if err != nil {
		return nil, err
	}
	if !successor {
		err = removeDeadSocket(path)
	}
	if err != nil {
		_ = lock.Close()
		return nil, err
	}
	l, gid, err := bindAdminSocket(path)
	if err != nil {
		_ = lock.Close()
		return nil, err
	}
	s := &adminSocket{UnixListener: l, path: path, lock: lock, gid: gid}
	if s.file, err = os.Lstat(path); err != nil {
		return nil, errors.Join(fmt.Errorf("look at admin socket: %w", err), s.Close())
	}
	return s, nil
}

// isAt reports whether a path names this socket.
func (s *adminSocket) isAt(name string) bool {
	fi, err := os.Lstat(name)
	return err == nil && s.file != nil && os.SameFile(s.file, fi)
}

// moveAside makes the socket available beside its path and releases the lock. The socket also
// stays at its path until a successor puts its own there, so that a gateway answers at all
// times.
func (s *adminSocket) moveAside() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	aside := s.path + config.DrainingSuffix
	if err := removeDeadSocket(aside); err != nil {
		return err
	}
	if err := os.Link(s.path, aside); err != nil {
		return err
	}
	s.aside.Store(true)
	err := s.lock.Close()
	s.lock = nil
	return err
}

// inPlace reports whether it is found where it was created.
func (s *adminSocket) inPlace() bool { return !s.aside.Load() }

// How long a killed process may take to release its locks and close its sockets. A gateway
// that is started next does not see that the old one is dying; a successor knows it.
const (
	deathPatience     = time.Second
	successorPatience = 5 * time.Second
)

// outlast calls try again while it returns errAdminInUse, because the other daemon may be dying.
func outlast(patience time.Duration, try func() error) error {
	for deadline := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		if err := try(); !errors.Is(err, errAdminInUse) || time.Now().After(deadline) {
			return err
		}
	}
}

// awaitLock is lockFile, but waits for a dying process to release the lock.
func awaitLock(path string, patience time.Duration) (f *os.File, err error) {
	err = outlast(patience, func() (err error) {
		f, err = lockFile(path)
		return err
	})
	return f, err
}

// moveBack undoes moveAside, unless another process holds the lock. It can be repeated.
func (s *adminSocket) moveBack() (err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.inPlace() {
		return nil
	}
	if s.lock == nil {
		if s.lock, err = lockFile(s.path + ".lock"); err != nil {
			return err
		}
	}
	if s.isAt(s.path) { // rename does nothing if both names are the same file
		err = os.Remove(s.at())
	} else {
		err = os.Rename(s.at(), s.path)
	}
	if err != nil {
		return err
	}
	s.aside.Store(false)
	return nil
}

// lockFile takes the lock; if another process holds it, the error is errAdminInUse. The file
// is never removed: otherwise two daemons could lock two files with the same name. Root gives
// away only what it has created: another user, whose directory it is, may have put a link there.
func lockFile(path string) (*os.File, error) {
	const flags = os.O_RDWR | unix.O_NOFOLLOW
	f, err := os.OpenFile(path, flags|os.O_CREATE|os.O_EXCL, 0o600)
	switch {
	case err == nil:
		giveToOwner(f)
	case errors.Is(err, os.ErrExist):
		f, err = os.OpenFile(path, flags, 0)
	}
	if err != nil {
		return nil, ofOwner(fmt.Errorf("open admin lock: %w", err))
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("%w (%s is locked)", errAdminInUse, path)
		}
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	return f, nil
}

// giveToOwner gives a file created by root to the owner of its directory, since that user has to
// open it, too. Errors are ignored: that user then gets an error that names the file.
func giveToOwner(f *os.File) {
	var dir unix.Stat_t
	if os.Geteuid() != 0 || unix.Stat(filepath.Dir(f.Name()), &dir) != nil || dir.Uid == 0 {
		return
	}
	_ = f.Chown(int(dir.Uid), int(dir.Gid))
}

// adminMode is the mode of the socket.
const adminMode = 0o660

// bindAdminSocket binds a socket that never has more permissions than adminMode: bind takes
// the mode of the unbound socket's inode, less the umask, for which the second call
// compensates. The socket appears at its path only when it is complete, replacing any other.
func bindAdminSocket(final string) (*net.UnixListener, uint32, error) {
	path := final + config.NewSuffix
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
	if err := os.Rename(path, final); err != nil {
		_ = l.Close()
		return nil, 0, fmt.Errorf("put admin socket in place: %w", err)
	}
	u := l.(*net.UnixListener)
	u.SetUnlinkOnClose(false) // it has been renamed
	return u, gid, nil
}

// removeDeadSocket is tryRemoveSocket, but waits for a dying process to close the socket.
func removeDeadSocket(path string) error {
	return outlast(deathPatience, func() error { return tryRemoveSocket(path) })
}

// tryRemoveSocket unlinks a socket; if a process listens on it that may be a gateway, the error
// is errAdminInUse. It refuses to remove anything that is not a socket.
func tryRemoveSocket(path string) error {
	fi, err := os.Lstat(path)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("look at admin socket: %w", err)
	case fi.Mode().Type() != os.ModeSocket:
		return fmt.Errorf("admin socket: %s exists and is not a socket", path)
	}
	c, err := net.DialTimeout("unix", path, time.Second)
	if err == nil {
		defer c.Close()
		if foreign := foreignListener(c.(*net.UnixConn)); foreign != "" {
			return fmt.Errorf("admin socket: %s listens on %s and is no gateway: end it, or name another socket (admin)", foreign, path)
		}
		return fmt.Errorf("%w (%s answers)", errAdminInUse, path)
	}
	if !Absent(err) { // its queue may be full
		return fmt.Errorf("look whether a daemon is on its admin socket: %w", err)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove dead admin socket: %w", err)
	}
	return nil
}

// foreignListener names the program that listens at the other end, or returns "" if it may be a gateway: all of its
// processes have names that begin with "smcgw", or with that of this program.
func foreignListener(c *net.UnixConn) string {
	p, err := credOf(c)
	name, errName := os.ReadFile(process.File(p.pid, "comm"))
	own, errOwn := os.ReadFile("/proc/self/comm")
	if errors.Join(err, errName, errOwn) != nil || bytes.HasPrefix(name, []byte("smcgw")) || bytes.Equal(name, own) {
		return ""
	}
	return fmt.Sprintf("process %d (%s)", p.pid, bytes.TrimSpace(name))
}

// giveToGroup gives the socket to process.AdminGroup, if the host has it, and returns the
// group of the socket. Without permission the socket keeps the process's group.
func giveToGroup(path string) uint32 {
	if g, err := user.LookupGroup(process.AdminGroup); err == nil {
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

// Close stops listening, removes the socket and releases the lock, in this order. A
// successor's socket in its place is left alone.
func (s *adminSocket) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	errs := []error{s.UnixListener.Close()}
	if s.isAt(s.at()) {
		errs = append(errs, os.Remove(s.at()))
	}
	if s.lock != nil {
		errs = append(errs, s.lock.Close())
	}
	return errors.Join(errs...)
}

// ErrDaemonAlive is returned by Cleanup when a daemon is running.
var ErrDaemonAlive = errors.New("a daemon is running")

// Cleanup removes what a daemon that did not stop cleanly left of its admin socket, and then
// runs more, while no other daemon can start. It returns the names of the sockets that were
// removed. It is idempotent, and fails with ErrDaemonAlive while a daemon is alive.
func Cleanup(cfg config.Config, more ...func() error) (removed []string, err error) {
	before := socketFiles(cfg)
	err = cleanup(cfg, more)
	after := socketFiles(cfg)
	return slices.DeleteFunc(before, func(name string) bool { return slices.Contains(after, name) }), err
}

// socketFiles lists the sockets that exist in the places named by a configuration.
func socketFiles(cfg config.Config) (names []string) {
	places := []string{cfg.Admin, cfg.Admin + config.DrainingSuffix, cfg.InProcess.Socket}
	entries, _ := os.ReadDir(cfg.ShmDir)
	for _, e := range entries {
		places = append(places, filepath.Join(cfg.ShmDir, e.Name()))
	}
	for _, name := range places {
		if fi, err := os.Lstat(name); err == nil && fi.Mode().Type() == os.ModeSocket {
			names = append(names, name)
		}
	}
	return names
}

func cleanup(cfg config.Config, more []func() error) error {
	old := removeDeadSocket(cfg.Admin + config.DrainingSuffix)
	if errors.Is(old, errAdminInUse) {
		old = fmt.Errorf("%w: %w", ErrDaemonAlive, old)
	}
	lock, err := cleanupLock(cfg.Admin)
	if err != nil {
		return err
	}
	defer lock.Close() // it may be nil
	errs := []error{old}
	errs = append(errs, removeDeadSocket(cfg.Admin))
	for _, sweep := range more {
		errs = append(errs, sweep())
	}
	return errors.Join(errs...)
}

// cleanupLock keeps a daemon from starting while the remains of another are removed. The lock
// is nil if no daemon has ever run there.
func cleanupLock(admin string) (*os.File, error) {
	lock, err := awaitLock(admin+".lock", deathPatience)
	switch {
	case errors.Is(err, errAdminInUse):
		return nil, fmt.Errorf("%w: %w", ErrDaemonAlive, err)
	case errors.Is(err, os.ErrNotExist): // not even the directory exists
		return nil, nil
	case err != nil:
		return nil, err
	}
	return lock, nil
}
