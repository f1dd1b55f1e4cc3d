package loop

import (
	"net"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// placedThread is a placer of a thread that may use some processors.
type placedThread struct {
	placer

	flows   int
	cpu     int // of the application
	allowed unix.CPUSet
	now     time.Time
	err     error // of set
}

func newPlacedThread(cpus ...int) *placedThread {
	p := &placedThread{flows: 50, now: time.Now()}
	for _, n := range cpus {
		p.allowed.Set(n)
	}
	p.placer = placer{
		where: func(int) (int, bool) { return p.cpu, p.cpu >= 0 },
		get: func(set *unix.CPUSet) error {
			*set = p.allowed
			return nil
		},
		set: func(set *unix.CPUSet) error {
			if p.err == nil {
				p.allowed = *set
			}
			return p.err
		},
	}
	return p
}

// window is a verdict's worth of reads of so many bytes each, in so much time; the
// application is by turns on each of cpus.
func (p *placedThread) window(size int, took time.Duration, cpus ...int) {
	const reads = placeEvery * placeLooks
	for i := range reads {
		p.cpu = cpus[i/placeEvery%len(cpus)]
		p.read(128+i/placeEvery%p.flows, size, p.now.Add(took*time.Duration(i)/(reads-1)))
	}
	p.now = p.now.Add(took)
}

func (p *placedThread) may(t *testing.T, cpus ...int) {
	t.Helper()
	var want unix.CPUSet
	for _, n := range cpus {
		want.Set(n)
	}
	require.Equal(t, want, p.allowed)
}

const soon = 10 * time.Millisecond

func TestPlacerKeepsOffTheApplication(t *testing.T) {
	p := newPlacedThread(0, 1, 5)
	p.window(64, soon, 1)
	p.may(t, 0, 5)
	p.window(64, soon, 1)
	require.EqualValues(t, 1, p.moves, "it is there")
	p.window(64, soon, 5, 5, 5, 5, 5, 5, 5, 0)
	p.may(t, 0, 1)
	p.release()
	p.may(t, 0, 1, 5)
	p.release()
	require.EqualValues(t, 3, p.moves)
}

func TestPlacerLeavesOthersAlone(t *testing.T) {
	for name, window := range map[string]func(*placedThread){
		"bulk": func(p *placedThread) { p.window(placeSmall, soon, 0) },
		"few":  func(p *placedThread) { p.window(64, placeWindow+1, 0) },
		"one flow": func(p *placedThread) {
			p.flows = 1
			p.window(64, soon, 0)
			p.flows = 50
		},
		"two processors":  func(p *placedThread) { p.window(64, soon, 0, 1) },
		"not told":        func(p *placedThread) { p.window(64, soon, -1) },
		"not among ours":  func(p *placedThread) { p.window(64, soon, 7) },
		"too large to be": func(p *placedThread) { p.window(64, soon, 1<<20) },
	} {
		t.Run(name, func(t *testing.T) {
			p := newPlacedThread(0, 1)
			window(p)
			p.may(t, 0, 1)
			require.Zero(t, p.moves)

			p.window(64, soon, 0)
			p.may(t, 1)
			window(p)
			p.may(t, 0, 1)
		})
	}
}

func TestPlacerWithOneProcessor(t *testing.T) {
	p := newPlacedThread(3)
	p.window(64, soon, 3)
	p.may(t, 3)

	p = newPlacedThread(0, 1)
	p.err = unix.EPERM
	p.window(64, soon, 0)
	require.False(t, p.placed)
}

// TestPlacerExpires: a place does not outlive what it was for.
func TestPlacerExpires(t *testing.T) {
	p := newPlacedThread(0, 1)
	p.window(64, soon, 0)
	p.expire(p.now.Add(placeWindow))
	p.may(t, 1)
	p.expire(p.now.Add(3 * placeWindow))
	p.may(t, 0, 1)
}

// TestPlacerOfAThread: what the kernel says and does.
func TestPlacerOfAThread(t *testing.T) {
	runtime.LockOSThread() // not unlocked where a test fails: the thread ends with it
	var before, after unix.CPUSet
	require.NoError(t, unix.SchedGetaffinity(0, &before))
	if before.Count() < 2 {
		t.Skip("one processor")
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	c, err := net.Dial("tcp", l.Addr().String())
	require.NoError(t, err)
	defer c.Close()
	a, err := l.Accept()
	require.NoError(t, err)
	defer a.Close()
	_, err = c.Write([]byte{1})
	require.NoError(t, err)
	_, err = a.Read(make([]byte, 1))
	require.NoError(t, err)

	p := newPlacer()
	rc, err := a.(syscall.Conn).SyscallConn()
	require.NoError(t, err)
	require.NoError(t, rc.Control(func(fd uintptr) {
		cpu, ok := p.where(int(fd))
		require.True(t, ok)
		require.True(t, before.IsSet(cpu))
		require.Zero(t, testing.AllocsPerRun(100, func() {
			for range placeEvery * placeLooks {
				p.flow = -1 // as if another one had been looked at
				p.read(int(fd), 1, time.Time{})
			}
		}))
		require.True(t, p.placed)
		require.NoError(t, unix.SchedGetaffinity(0, &after))
		require.False(t, after.IsSet(cpu))
		require.Equal(t, before.Count()-1, after.Count())
	}))
	p.release()
	require.NoError(t, unix.SchedGetaffinity(0, &after))
	require.Equal(t, before, after)
	runtime.UnlockOSThread()
}
