package private

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
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

const (
	// idleWait is how long a broker keeps running without clients.
	idleWait = 1500 * time.Millisecond
	idleTick = 250 * time.Millisecond
)

// Options are what a broker needs besides its socket.
type Options struct {
	Programs broker.Scanner // tells which programs bypass the library; nil: none
	Off      func() bool    // tells whether the host's switch is off, polled now and then; nil: never
	Log      *slog.Logger
}

// Serve serves the socket of a directory until ctx ends, or shortly after the last client has left.
func Serve(ctx context.Context, dir string, socket *os.File, o Options) error {
	l, err := net.FileListener(socket)
	if err != nil {
		return fmt.Errorf("socket of the broker: %w", err)
	}
	u, ok := l.(*net.UnixListener)
	if !ok {
		_ = l.Close()
		return fmt.Errorf("socket of the broker: %s", l.Addr().Network())
	}
	u.SetUnlinkOnClose(false)
	at := filepath.Join(dir, SocketName)
	own, err := broker.PlaceOf(at)
	if err != nil {
		_ = l.Close()
		return err
	}
	b := broker.New(broker.Config{Limits: oneUser(), Scanner: o.Programs, Log: o.Log})
	if o.Off == nil {
		o.Off = func() bool { return false }
	}
	b.SetOff(o.Off())
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		defer cancel()
		awaitIdle(ctx, b, u, dir, own, o.Off)
	}()
	err = b.Serve(ctx, u)
	cancel()
	<-ended
	return err
}

// oneUser returns limits for a broker whose clients all belong to one user.
func oneUser() broker.Limits {
	const memory = 256 << 30
	return broker.Limits{
		Processes: 4096, ProcessesPerUser: 4096, Asks: 16384, AsksPerUser: 16384, Conns: 65536, ConnsPerUser: 65536, ConnsPerCgroup: 65536,
		Memory: memory, MemoryPerUser: memory,
	}
}

// awaitIdle passes the switch on to the broker. It returns once the broker has had no client for idleWait and end has
// removed its socket, or when ctx ends.
func awaitIdle(ctx context.Context, b *broker.Broker, l *net.UnixListener, dir string, own broker.Place, off func() bool) {
	t := time.NewTicker(idleTick)
	defer t.Stop()
	for since := time.Now(); ; {
		select {
		case <-ctx.Done():
			return
		case now := <-t.C:
			b.SetOff(off())
			if b.Clients() > 0 {
				since = now
			} else if now.Sub(since) >= idleWait && end(ctx, b, l, dir, own) {
				return
			}
		}
	}
}

// end removes the socket under the lock. It returns false if a client has connected meanwhile, or if another process
// holds the lock.
func end(ctx context.Context, b *broker.Broker, l *net.UnixListener, dir string, own broker.Place) bool {
	ctx, cancel := context.WithTimeout(ctx, idleTick)
	defer cancel()
	held, err := lock(ctx, dir)
	if err != nil {
		return check(dir) != nil // a directory that is gone has no users
	}
	defer func() { _ = held.Close() }()
	if waits(l) || b.Clients() > 0 {
		return false
	}
	own.Remove()
	return true
}

// waits tells whether a client waits to be accepted.
func waits(l *net.UnixListener) (is bool) {
	raw, err := l.SyscallConn()
	if err != nil {
		return false
	}
	_ = raw.Control(func(fd uintptr) {
		n, _ := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
		is = n > 0
	})
	return is
}
