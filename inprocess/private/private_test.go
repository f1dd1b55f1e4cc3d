package private

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/lab/leak"
)

// brokers starts brokers as goroutines, and waits for their ends.
type brokers struct {
	t       *testing.T
	dir     string
	options Options
	started atomic.Int32
	running sync.WaitGroup
}

func newBrokers(t *testing.T) *brokers {
	dir, err := Dir([]string{t.TempDir()}, "")
	require.NoError(t, err)
	b := &brokers{t: t, dir: dir, options: Options{Log: slog.New(slog.DiscardHandler)}}
	t.Cleanup(b.running.Wait)
	return b
}

func (b *brokers) start(socket *os.File) error {
	fd, err := unix.FcntlInt(socket.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return err
	}
	b.started.Add(1)
	b.running.Go(func() {
		f := os.NewFile(uintptr(fd), "socket")
		defer f.Close()
		if err := Serve(context.Background(), b.dir, f, b.options); err != nil {
			b.t.Error(err)
		}
	})
	return nil
}

// TestOneBroker: many who come at once share one broker, which ends after the last and takes its socket along.
func TestOneBroker(t *testing.T) {
	t.Parallel()
	b := newBrokers(t)
	var all, joined sync.WaitGroup
	joined.Add(8)
	for i := range 8 {
		all.Go(func() {
			c, err := Join(t.Context(), b.dir, uint64(i+1), b.start)
			joined.Done()
			if err != nil {
				t.Error(err)
				return
			}
			totals, err := c.Totals()
			if err != nil || totals.Promoted != 0 {
				t.Error(totals, err)
			}
			joined.Wait()
			_ = c.Close()
		})
	}
	all.Wait()
	last := time.Now()
	require.Equal(t, int32(1), b.started.Load())
	b.running.Wait()
	require.GreaterOrEqual(t, time.Since(last), idleWait-idleTick)
	require.NoFileExists(t, filepath.Join(b.dir, SocketName))
}

// TestBrokerStaysWithACounter: a waiting run is a user.
func TestBrokerStaysWithACounter(t *testing.T) {
	t.Parallel()
	b := newBrokers(t)
	c, err := Join(t.Context(), b.dir, 1, b.start)
	require.NoError(t, err)
	defer c.Close()
	time.Sleep(idleWait + 4*idleTick)
	_, err = c.Totals()
	require.NoError(t, err)
	require.FileExists(t, filepath.Join(b.dir, SocketName))
}

// TestCounterSaysOff: programs do not ask while the switch is off, so no count tells.
func TestCounterSaysOff(t *testing.T) {
	t.Parallel()
	var off atomic.Bool
	b := newBrokers(t)
	b.options.Off = off.Load
	c, err := Join(t.Context(), b.dir, 1, b.start)
	require.NoError(t, err)
	defer c.Close()
	for _, want := range []bool{true, false} {
		off.Store(want)
		require.Eventually(t, func() bool {
			totals, err := c.Totals()
			return err == nil && totals.Off == want
		}, 30*time.Second, idleTick)
	}
}

// TestJoinAtTheEnd: whoever joins while the broker ends has one all the same.
func TestJoinAtTheEnd(t *testing.T) {
	t.Parallel()
	b := newBrokers(t)
	for i := range 4 {
		c, err := Join(t.Context(), b.dir, 1, b.start)
		require.NoError(t, err)
		_, err = c.Totals()
		require.NoError(t, err)
		require.NoError(t, c.Close())
		time.Sleep(idleWait - idleTick/2 + time.Duration(i)*idleTick/2)
	}
}

// TestDeadBrokerIsReplaced: a socket that nobody serves is one of a broker that was killed.
func TestDeadBrokerIsReplaced(t *testing.T) {
	t.Parallel()
	b := newBrokers(t)
	c, err := Join(t.Context(), b.dir, 1, func(*os.File) error { return nil })
	require.Error(t, err, "%v", c)
	require.FileExists(t, filepath.Join(b.dir, SocketName))
	c, err = Join(t.Context(), b.dir, 1, b.start)
	require.NoError(t, err)
	require.NoError(t, c.Close())
}

// TestDirIsOurs: a directory that others can write to, or that is another's, is refused.
func TestDirIsOurs(t *testing.T) {
	temp := t.TempDir()
	dir, err := Dir([]string{"", "relative", "/proc/1/none"}, temp)
	require.NoError(t, err)
	require.Equal(t, temp, filepath.Dir(dir))
	again, err := Dir([]string{"", "relative", "/proc/1/none"}, temp)
	require.NoError(t, err)
	require.Equal(t, dir, again)

	var wrong *DirError
	require.NoError(t, os.Chmod(dir, 0o770))
	_, err = Dir([]string{"", "relative", "/proc/1/none"}, temp)
	require.ErrorAs(t, err, &wrong)

	require.NoError(t, os.Remove(dir))
	require.NoError(t, os.Symlink(t.TempDir(), dir))
	_, err = Dir([]string{"", "relative", "/proc/1/none"}, temp)
	require.ErrorAs(t, err, &wrong)

	require.NoError(t, os.Remove(dir))
	require.NoError(t, os.WriteFile(dir, nil, 0o600))
	_, err = Dir([]string{"", "relative", "/proc/1/none"}, temp)
	require.ErrorAs(t, err, &wrong)
}

// TestMain fails the run if a test left a goroutine or a descriptor behind.
func TestMain(m *testing.M) { os.Exit(leak.Main(m)) }
