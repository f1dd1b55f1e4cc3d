package private

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/inprocess/broker"
)

const (
	// idleWait is how long a broker goes on without clients.
	idleWait = 1500 * time.Millisecond
	idleTick = 250 * time.Millisecond
)

// Options are what a broker needs besides its socket.
type Options struct {
	Programs broker.Scanner // tells which programs go past the library; nil: none
	Off      func() bool    // tells whether the host's switch is off, and is asked now and then; nil: it never is
	Log      *slog.Logger
}

// Serve serves the socket of a directory until ctx ends, or a moment after the last client.
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

// oneUser are the limits where all clients are one user's.
func oneUser() broker.Limits {
	const memory = 256 << 30
	return broker.Limits{
		Processes: 4096, ProcessesPerUser: 4096, Asks: 16384, AsksPerUser: 16384, Conns: 65536, ConnsPerUser: 65536, ConnsPerCgroup: 65536,
		Memory: memory, MemoryPerUser: memory,
	}
}

// awaitIdle has the switch obeyed, and returns when nobody has been served for a moment, and nobody can be any more.
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

// end takes the socket away, under the lock; false if somebody has connected between, or starts a broker.
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

// waits tells whether somebody waits to be accepted.
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
