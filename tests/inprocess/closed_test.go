package inprocess

import (
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/inprocess"
	"github.com/smcgw/smcgw/inprocess/broker"
)

// errNoName is the error of a namer that cannot name a connection.
var errNoName = errors.New("no name")

// slowNamer keeps the broker busy with a socket.
type slowNamer struct{}

func (slowNamer) Of(int, bool) (mine, peer uint32, client bool, err error) {
	time.Sleep(20 * time.Millisecond)
	return 0, 0, false, errNoName
}

// TestCloseWhileTheBrokerLooks checks that the peer sees the end as soon as close returns, although the broker holds a
// duplicate of the socket then, which would withhold the FIN.
func TestCloseWhileTheBrokerLooks(t *testing.T) {
	program := shared.For(t).Program("closed")
	want, err := run(nil, time.Minute, nil, program)
	require.NoError(t, err, want)
	require.Equal(t, "at once\n", want)
	w := openWorld(t, shared.For(t).Library(), broker.Config{Namer: slowNamer{}})
	got, err := run(w, time.Minute, nil, program)
	require.NoError(t, err, got)
	require.Equal(t, want, got)
}

// keeper reports on asked that it has a socket, and keeps it until may is closed.
type keeper struct{ asked, may chan struct{} }

func (k keeper) Of(int, bool) (mine, peer uint32, client bool, err error) {
	k.asked <- struct{}{}
	<-k.may
	return 0, 0, false, errNoName
}

// TestCloseWhileABrokerGoes checks that an epoll set does not report a closed socket that a broker on its way out still
// has a duplicate of, for which the kernel would report it.
func TestCloseWhileABrokerGoes(t *testing.T) {
	program := shared.For(t).Program("closed")
	want, err := run(nil, time.Minute, nil, program, "gone")
	require.NoError(t, err, want)
	k := keeper{make(chan struct{}), make(chan struct{})}
	w := openWorld(t, shared.For(t).Library(), broker.Config{Namer: k})
	replaced := make(chan error, 1)
	go func() {
		<-k.asked
		replaced <- w.Replace(broker.Config{})
	}()
	got, err := run(w, time.Minute, nil, program, "gone")
	close(k.may)
	require.NoError(t, err, got)
	require.Equal(t, want, got)
	require.NoError(t, <-replaced)
}

// TestBrokerHearsOfAllThatIsClosed checks that the broker learns of every close while the program goes on, also if
// connections are closed faster than it reads.
func TestBrokerHearsOfAllThatIsClosed(t *testing.T) {
	program := shared.For(t).Program("closes")
	var slow sync.Once
	w := openWorld(t, shared.For(t).Library(), broker.Config{
		Thresholds: broker.Thresholds{Calls: 1},
		Tell: func(what broker.Told, _ broker.End, _ inprocess.Why) {
			if what == broker.ToldEnded {
				slow.Do(func() { time.Sleep(500 * time.Millisecond) })
			}
		},
	})
	end := filepath.Join(t.TempDir(), "end")
	done := make(chan error, 1)
	go func() {
		_, err := run(w, time.Minute, nil, program, end)
		done <- err
	}()
	require.Eventually(t, func() bool { return w.Counters().Promoted > 200 }, 30*time.Second, time.Millisecond)
	require.Eventually(t, func() bool { return w.Counters().Conns == 0 }, 10*time.Second, 10*time.Millisecond)
	require.Empty(t, done)
	require.NoError(t, os.WriteFile(end, nil, 0o600))
	require.NoError(t, <-done)
}
