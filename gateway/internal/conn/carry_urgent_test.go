package conn

import (
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// control runs fn on the descriptor of a connection.
func control(t require.TestingT, c *net.TCPConn, fn func(fd int) error) {
	rc, err := c.SyscallConn()
	require.NoError(t, err)
	var failed error
	require.NoError(t, rc.Control(func(fd uintptr) { failed = fn(int(fd)) }))
	require.NoError(t, failed)
}

// sendAround writes two bytes, an urgent one and two more.
func sendAround(t require.TestingT, c *net.TCPConn) {
	_, err := c.Write([]byte("ab"))
	require.NoError(t, err)
	control(t, c, func(fd int) error { return unix.Sendto(fd, []byte("c"), unix.MSG_OOB, nil) })
	_, err = c.Write([]byte("de"))
	require.NoError(t, err)
}

// TestUrgentBytesStopNothing: a read ends in front of an urgent byte although more
// has arrived, and nothing else tells of what is after it. Signals, as the runtime sends
// them for preemption, change nothing.
func TestUrgentBytesStopNothing(t *testing.T) {
	p := newPair(t)
	for _, kind := range allCarriers {
		t.Run(kind.String(), func(t *testing.T) {
			c := p.dial(t, kind)
			defer c.closeApps()
			defer signalled(c.flow[0], c.flow[1])()
			for round := range 200 {
				from := round % 2
				f := c.flow[from]
				f.Shard.Call(func() { // a look at the first bytes sees all of them
					sendAround(t, c.app[from])
					arrived(t, f)
				})
				got := make([]byte, 5)
				require.NoError(t, c.app[1-from].SetReadDeadline(time.Now().Add(patience)))
				_, err := io.ReadFull(c.app[1-from], got)
				require.NoError(t, err, "round %d: %q", round, got)
				require.Equal(t, "abcde", string(got))
			}
		})
	}
}

// signalled sends SIGURG to the threads of flows again and again, until the function that it
// returns is called.
func signalled(flows ...*Flow) (stop func()) {
	var all sync.WaitGroup
	over := make(chan struct{})
	for _, f := range flows {
		var tid int
		f.Shard.Call(func() { tid = unix.Gettid() })
		all.Go(func() {
			for {
				select {
				case <-over:
					return
				case <-time.After(50 * time.Microsecond):
					_ = unix.Tgkill(unix.Getpid(), tid, unix.SIGURG)
				}
			}
		})
	}
	return func() {
		close(over)
		all.Wait()
	}
}

// arrived waits until the flow's kernel has five bytes.
func arrived(t require.TestingT, f *Flow) {
	deadline := time.Now().Add(patience)
	for unread := 0; unread < 5; {
		var err error
		unread, err = unix.IoctlGetInt(f.leg.fd, unix.SIOCINQ)
		require.NoError(t, err)
		require.True(t, time.Now().Before(deadline))
	}
}
