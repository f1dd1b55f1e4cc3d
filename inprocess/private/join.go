package private

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/smcgw/smcgw/inprocess/broker"
)

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
