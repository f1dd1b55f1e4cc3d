package private

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/inprocess/broker"
)

// SocketName is the name of the broker's socket in its directory.
const SocketName = "in-process.sock"

// DirError reports a directory that another user could write to.
type DirError struct {
	Dir  string
	What string
}

// Error returns the directory and what is wrong with it.
func (e *DirError) Error() string { return e.Dir + ": " + e.What }

// Dir returns the directory of this user's private broker, and creates it if need be: in the first of the runtime
// directories that belongs to the user (sudo may leave another user's), else in temp.
func Dir(runtimes []string, temp string) (string, error) {
	dir := filepath.Join(temp, "smcgw-"+strconv.Itoa(os.Geteuid()))
	for _, runtime := range runtimes {
		var st unix.Stat_t
		if err := unix.Stat(runtime, &st); filepath.IsAbs(runtime) && err == nil && int(st.Uid) == os.Geteuid() {
			dir = filepath.Join(runtime, "smcgw")
			break
		}
	}
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", fmt.Errorf("directory of the broker: %w", err)
	}
	return dir, check(dir)
}

func check(dir string) error {
	var st unix.Stat_t
	if err := unix.Lstat(dir, &st); err != nil {
		return fmt.Errorf("%s: %w", dir, err)
	}
	switch {
	case st.Mode&unix.S_IFMT != unix.S_IFDIR:
		return &DirError{dir, "is not a directory"}
	case int(st.Uid) != os.Geteuid():
		return &DirError{dir, fmt.Sprintf("belongs to user %d", st.Uid)}
	case st.Mode&0o077 != 0:
		return &DirError{dir, fmt.Sprintf("is open to others, mode %#o", st.Mode&0o777)}
	}
	return nil
}

// lock takes the lock of a directory, and waits for it until ctx ends. Closing the file releases the lock.
func lock(ctx context.Context, dir string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock of the broker: %w", err)
	}
	for {
		if err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err == nil {
			return f, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) {
			break
		}
		select {
		case <-ctx.Done():
			err = ctx.Err()
		case <-time.After(5 * time.Millisecond):
			continue
		}
		break
	}
	return nil, errors.Join(fmt.Errorf("lock of the broker: %w", err), f.Close())
}

const (
	// joinWait bounds all of Join.
	joinWait = 5 * time.Second
	// joinTries allows for a broker that ends between dialing and its first answer.
	joinTries = 3
)

// Join connects a counter of a run to the broker of a directory. If none is serving, it creates the socket and calls
// start, which must start a process that calls Serve with it; the file remains the caller's.
func Join(ctx context.Context, dir string, run uint64, start func(socket *os.File) error) (*Counter, error) {
	ctx, cancel := context.WithTimeout(ctx, joinWait)
	defer cancel()
	var errs error
	for range joinTries {
		c, err := join(ctx, dir, start)
		if err != nil {
			return nil, err
		}
		counter, err := newCounter(c, run)
		if err == nil {
			return counter, nil
		}
		errs = errors.Join(errs, err)
	}
	return nil, errs
}

func join(ctx context.Context, dir string, start func(*os.File) error) (*net.UnixConn, error) {
	held, err := lock(ctx, dir)
	if err != nil {
		return nil, err
	}
	defer func() { _ = held.Close() }()
	at := filepath.Join(dir, SocketName)
	if c, err := dial(at); err == nil {
		return c, nil
	}
	l, err := broker.Listen(at, 0o600)
	if err != nil {
		return nil, err
	}
	l.SetUnlinkOnClose(false)
	defer func() { _ = l.Close() }()
	f, err := l.File()
	if err != nil {
		return nil, fmt.Errorf("socket of the broker: %w", err)
	}
	defer func() { _ = f.Close() }()
	if err := start(f); err != nil {
		return nil, fmt.Errorf("start the broker: %w", err)
	}
	return dial(at)
}

func dial(at string) (*net.UnixConn, error) {
	return net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: at, Net: "unixpacket"})
}
