package admin

import (
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// lacking is a listener of a host that lacks something for each connection, until it is closed.
type lacking struct {
	lacks  []error
	closed chan struct{}
}

func (l *lacking) Accept() (net.Conn, error) {
	if len(l.lacks) == 0 {
		<-l.closed
		return nil, net.ErrClosed
	}
	err := l.lacks[0]
	l.lacks = l.lacks[1:]
	return nil, &net.OpError{Op: "accept", Err: os.NewSyscallError("accept4", err)}
}

func (l *lacking) Close() error { return nil }

func (l *lacking) Addr() net.Addr { return &net.UnixAddr{} }

// TestServerOfAHostThatLacks: what a connection lacks, memory or a watch of epoll, ends no server.
func TestServerOfAHostThatLacks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		below := &lacking{lacks: []error{unix.ENOMEM, unix.ENOBUFS, unix.ENOSPC, unix.EMFILE}, closed: make(chan struct{})}
		l := limitListener(below, 1)
		ended := make(chan error, 1)
		go func() { ended <- (&http.Server{ErrorLog: log.New(io.Discard, "", 0)}).Serve(l) }()
		time.Sleep(time.Minute)
		synctest.Wait()
		require.Empty(t, below.lacks)
		require.Empty(t, ended)
		close(below.closed)
		require.ErrorIs(t, <-ended, net.ErrClosed)
	})
}
