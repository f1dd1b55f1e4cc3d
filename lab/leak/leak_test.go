package leak

import (
	"fmt"
	"net"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestMain(m *testing.M) { os.Exit(Main(m)) }

// tests is a Runner of one function.
type tests func() int

func (f tests) Run() int { return f() }

// impatience is how long a leak that stays is waited for.
const impatience = 100 * time.Millisecond

func TestMainReportsLeaks(t *testing.T) {
	require.Zero(t, Main(tests(func() int { return 0 })))
	require.Equal(t, 3, Main(tests(func() int { return 3 })))

	var f *os.File
	require.Equal(t, ExitLeak, run(tests(func() int {
		f, _ = os.Open("/dev/null")
		return 0
	}), impatience))
	require.NoError(t, f.Close())

	stop, stopped := make(chan struct{}), make(chan struct{})
	require.Equal(t, ExitLeak, run(tests(func() int {
		go func() { defer close(stopped); <-stop }()
		return 0
	}), impatience))
	close(stop)
	<-stopped
}

// TestMainKeepsPoller: the first use of the network is no leak.
func TestMainKeepsPoller(t *testing.T) {
	require.Zero(t, Main(tests(func() int {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		require.NoError(t, ln.Close())
		return 0
	})))
}

// recorder is a TB that collects errors and runs cleanups on demand.
type recorder struct {
	cleanups []func()
	errors   []string
	failed   bool
}

func (r *recorder) Helper()          {}
func (r *recorder) Failed() bool     { return r.failed }
func (r *recorder) Cleanup(f func()) { r.cleanups = append(r.cleanups, f) }
func (r *recorder) Errorf(format string, a ...any) {
	r.errors = append(r.errors, fmt.Sprintf(format, a...))
}

func TestCheck(t *testing.T) {
	held, err := os.Open("/dev/null")
	require.NoError(t, err)
	r := &recorder{}
	check(r, impatience)
	f, err := os.Open("/dev/zero")
	require.NoError(t, err)
	r.cleanups[0]()
	require.Len(t, r.errors, 1)
	require.Contains(t, r.errors[0], "/dev/zero")
	require.NotContains(t, r.errors[0], "/dev/null")

	r.errors, r.failed = nil, true
	r.cleanups[0]()
	require.Empty(t, r.errors, "a failed test may leak")
	require.NoError(t, f.Close())
	r.failed = false
	r.cleanups[0]()
	require.Empty(t, r.errors)
	require.NoError(t, held.Close())
}

func TestNewFiles(t *testing.T) {
	const epoll, event = "anon_inode:[eventpoll]", "anon_inode:[eventfd]"
	before := map[string]string{"0": "a", "3": "b"}
	require.Empty(t, newFiles(before, map[string]string{"0": "a"}))
	require.Empty(t, newFiles(before, map[string]string{"0": "a", "4": epoll, "5": event}))
	require.Len(t, newFiles(before, map[string]string{"4": epoll, "5": event, "6": event}), 1)
	require.Equal(t, []string{"3 c"}, newFiles(before, map[string]string{"0": "a", "3": "c"}), "reused number")
}
