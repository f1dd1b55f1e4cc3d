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
