package legs

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/internal/fdpass"
	"github.com/smcgw/smcgw/internal/procfs"
)

// tended is a namespace with a spare, and how often its legs were to be proved.
func tended(t *testing.T) (n *Namespace, proofs *atomic.Int32) {
	t.Helper()
	n, proofs = newNamespace(t), new(atomic.Int32)
	n.Tend(slog.New(slog.DiscardHandler), func() { proofs.Add(1) })
	return n, proofs
}

// standsBy waits for a spare and returns its process.
func standsBy(t *testing.T, n *Namespace) int {
	t.Helper()
	require.Eventually(t, func() bool {
		n.mu.Lock()
		defer n.mu.Unlock()
		return n.spare != nil && !n.spare.gone()
	}, 30*time.Second, time.Millisecond)
	return runs(t, n, spareVerb)
}

// runs waits for the one process in the namespace with a verb.
func runs(t *testing.T, n *Namespace, verb string) int {
	t.Helper()
	var pids []int
	require.Eventually(t, func() bool {
		pids = slices.DeleteFunc(processesOf(t, n), func(pid int) bool {
			line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
			return !strings.HasSuffix(string(line), "\x00"+verb+"\x00")
		})
		return len(pids) == 1
	}, 30*time.Second, time.Millisecond)
	return pids[0]
}

// The spare takes the place of a keeper that dies, and is replaced, again and again: a
// request that finds the keeper dead is answered. Each time the legs are proved.
func TestSpare(t *testing.T) {
	n, proofs := tended(t)
	index, _ := n.pair(t)
	require.Positive(t, index)
	for i := range 4 {
		spare := standsBy(t, n)
		require.NoError(t, unix.Kill(runs(t, n, keeperVerb), unix.SIGKILL))
		fds, err := n.Sockets(i%2 == 0, 3)
		require.NoError(t, err)
		require.Len(t, fds, 3)
		fdpass.CloseFDs(fds)
		require.True(t, n.Alive())
		require.Equal(t, spare, runs(t, n, keeperVerb))
		require.Eventually(t, func() bool { return proofs.Load() == int32(i+1) }, 30*time.Second, time.Millisecond)
		deaths, last := n.Deaths()
		require.Equal(t, i+1, deaths)
		require.WithinDuration(t, time.Now(), last, 30*time.Second)
	}
	spare := standsBy(t, n)
	require.NoError(t, n.Close())
	require.Eventually(t, func() bool { return errors.Is(unix.Kill(spare, 0), unix.ESRCH) || procfs.StatOf(spare).State() == "Z" }, 30*time.Second, time.Millisecond)
}

// A spare that dies is replaced without another proof; so is one that a look finds in the
// place of the keeper.
func TestSpareDies(t *testing.T) {
	n, proofs := tended(t)
	for range 2 {
		spare := standsBy(t, n)
		require.NoError(t, unix.Kill(spare, unix.SIGKILL))
		require.Eventually(t, func() bool {
			n.mu.Lock()
			defer n.mu.Unlock()
			return n.spare == nil || n.spare.gone()
		}, 30*time.Second, time.Millisecond)
		require.NotEqual(t, spare, standsBy(t, n))
	}
	require.Zero(t, proofs.Load())
	require.NoError(t, unix.Kill(runs(t, n, keeperVerb), unix.SIGKILL))
	require.Eventually(t, func() bool { return proofs.Load() == 1 }, 30*time.Second, time.Millisecond, "without a request")
	require.True(t, n.Alive())
}

// When both have died there is nothing left that could make one, and no request waits.
func TestSpareAndKeeperDie(t *testing.T) {
	n, _ := tended(t)
	spare, keeper := standsBy(t, n), runs(t, n, keeperVerb)
	require.NoError(t, unix.Kill(keeper, unix.SIGSTOP)) // it makes no other spare before it dies
	require.Eventually(t, func() bool { return stopped(t, keeper) }, 30*time.Second, time.Millisecond)
	for _, pid := range []int{spare, keeper} {
		require.NoError(t, unix.Kill(pid, unix.SIGKILL))
	}
	require.Eventually(t, func() bool { return !n.Alive() }, 30*time.Second, time.Millisecond)
	_, err := n.Sockets(false, 1)
	require.ErrorIs(t, err, ErrKeeper)
	require.NoError(t, n.Close())
}

// Processes that die again and again are replaced at once a few times, and then ever more
// slowly, up to a bound, until they have lived for a while.
func TestPace(t *testing.T) {
	var p pace
	now := time.Now()
	var waits []time.Duration
	for range 18 {
		p.death(now)
		waits = append(waits, p.due().Sub(now))
		now = p.due()
	}
	require.Equal(t, make([]time.Duration, atOnce), waits[:atOnce])
	for i := atOnce; i < len(waits); i++ {
		require.Equal(t, min(maxPause, minPause<<(i-atOnce)), waits[i])
	}
	p.death(now.Add(calm + 1))
	require.Equal(t, now.Add(calm+1), p.due())
}

// TestRoom: a leg is as it began until it has carried much at a good pace, and takes more
// from then on.
func TestRoom(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		in    time.Duration // 32 MiB are read
		every int           // a pause of 3 s after each so many bytes
		wide  bool
	}{
		{"burst", 100 * time.Millisecond, 0, true},
		{"steady", 6 * time.Second, 0, true},
		{"slow", 10 * time.Second, 0, false},
		{"bursts", 100 * time.Millisecond, 8 << 20, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			ln, err := net.Listen("tcp", "127.0.0.1:0")
			require.NoError(t, err)
			defer ln.Close()
			conn, err := net.Dial("tcp", ln.Addr().String())
			require.NoError(t, err)
			defer conn.Close()
			raw, err := conn.(*net.TCPConn).SyscallConn()
			require.NoError(t, err)
			require.NoError(t, raw.Control(func(fd uintptr) {
				held := func() int {
					n, err := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF)
					require.NoError(t, err)
					return n
				}
				before := held()
				var r Room
				const piece, all = 64 << 10, 32 << 20
				now := time.Now()
				for n := 0; n < all; n += piece {
					r.Read(int(fd), piece, now)
					now = now.Add(c.in * piece / all)
					if c.every > 0 && (n+piece)%c.every == 0 {
						now = now.Add(3 * time.Second)
					}
				}
				if c.wide {
					require.Equal(t, max(before, 2*min(wideRoom, mostRoom())), held())
				} else {
					require.Equal(t, before, held())
				}
			}))
		})
	}
}
