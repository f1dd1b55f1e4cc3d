package sockets

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/gateway/host"
)

// slowLoop is a loop that a test turns.
type slowLoop struct {
	host.Loop
	later []func()
}

func (*slowLoop) Post(fn func()) { fn() }

func (l *slowLoop) After(_ time.Duration, fn func()) (stop func()) {
	l.later = append(l.later, fn)
	return func() {}
}

// However many connections come while none can be accepted, the listener asks again
// once at a time, until there are none that wait.
func TestListenerRestsOnce(t *testing.T) {
	socket, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	defer func() { require.NoError(t, unix.Close(socket)) }()
	loop := &slowLoop{}
	l := &kernelListener{on: loop, fds: []int{socket, socket}} // accept of what does not listen fails
	for range 10 {
		l.take(socket)
		l.Arrived(func() {})
	}
	require.Len(t, loop.later, 1)
	for range 3 {
		again := loop.later[0]
		loop.later = nil
		again()
		require.Len(t, loop.later, 1)
	}
	require.NoError(t, unix.Listen(socket, 1))
	again := loop.later[0]
	loop.later = nil
	again()
	require.Empty(t, loop.later)
}
