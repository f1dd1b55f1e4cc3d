package e2e

import (
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/lab/testnet"
)

// TestSemanticsOfSteadyReader checks that a writer can go on as often as natively while its reader reads slowly:
// TCP_USER_TIMEOUT and timeouts of applications count the time until it can.
func TestSemanticsOfSteadyReader(t *testing.T) {
	t.Parallel()
	w := newWorld(t, testnet.Config{})
	w.upBoth(ownSettings())
	// The reader goes on while a gateway has no processor, so what a busy machine had no time for is measured again.
	for try := 0; !w.steady(t); try++ {
		require.Less(t, try, lateTries)
		w.quiet(t)
	}
}

// steady tells whether a writer can go on as often as natively.
func (w *world) steady(t *testing.T) bool {
	t.Helper()
	var worst [2][2]int // by carried and native, and by the side that writes
	var all sync.WaitGroup
	for i, h := range []*testnet.Host{w.h2, w.h3} {
		for j := range worst[i] {
			p := w.pairInTime(t, h, h.AddrPort4(ownPort+uint16(j)))
			defer p.close()
			from, to := p.c, p.s
			if j == 1 {
				from, to = to, from
			}
			if h == w.h2 {
				require.Eventually(t, func() bool { return w.gateways[w.h1].status().Flows[w.via] == j+1 }, 10*time.Second, 10*time.Millisecond)
			}
			fill(t, from)
			all.Go(func() { worst[i][j] = longestStep(t, from, to) })
		}
	}
	all.Wait()
	ok := true
	for j, name := range []string{"client", "server"} {
		carried, native := worst[0][j], worst[1][j]
		t.Logf("the %s writes again after %d KiB that are read, natively after %d", name, carried>>10, native>>10)
		require.Positive(t, native)
		ok = ok && carried < 2*native+96<<10
	}
	return ok
}

// longestStep reads slowly what a writer has filled all buffers with, and returns the most bytes that had to be read
// before the writer could write again.
func longestStep(t *testing.T, from, to *net.TCPConn) (worst int) {
	const piece, pieces, pause = 8 << 10, 256, 20 * time.Millisecond
	buf, more := make([]byte, piece), make([]byte, 64<<10)
	step := 0
	for range pieces {
		if _, err := io.ReadFull(to, buf); err != nil {
			t.Errorf("read: %v", err)
			return 0
		}
		step += piece
		time.Sleep(pause)
		if wrote := writeNow(t, from, more); wrote > 0 {
			worst, step = max(worst, step), 0
		}
	}
	return max(worst, step)
}

// writeNow writes what a socket takes without waiting.
func writeNow(t *testing.T, c *net.TCPConn, b []byte) (all int) {
	raw, err := c.SyscallConn()
	if err != nil {
		t.Errorf("write: %v", err)
		return 0
	}
	for {
		var n int
		_ = raw.Control(func(fd uintptr) { n, err = unix.SendmsgN(int(fd), b, nil, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL) })
		if err != nil || n <= 0 {
			return all
		}
		all += n
	}
}
