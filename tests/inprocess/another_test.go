package inprocess

import (
	"io"
	"net"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/inprocess/broker"
)

// TestAnotherBroker checks that connections promoted by a second broker wake the loop of a process that has met an
// earlier broker, and that connections promoted by the earlier broker still do. The second broker knows their sides.
func TestAnotherBroker(t *testing.T) {
	program := shared.For(t).Program("another")
	want, err := run(nil, time.Minute, nil, program)
	require.NoError(t, err, want)
	require.Equal(t, "late: 0\n", want)
	c := broker.Config{Thresholds: broker.Thresholds{Calls: 1}}
	w := openWorld(t, shared.For(t).Library(), c)
	replaced := make(chan struct{})
	go func() {
		defer close(replaced)
		assert.Eventually(t, func() bool { return w.Counters().Promoted > 0 }, 30*time.Second, time.Millisecond)
		assert.NoError(t, w.Replace(c))
		assert.Eventually(t, func() bool {
			sides := map[broker.Role]bool{}
			for _, e := range w.Snapshot().Ends {
				sides[e.Socket.Role] = sides[e.Socket.Role] || e.ID != 0 && e.Since.IsZero()
			}
			return sides[broker.RoleClient] && sides[broker.RoleServer]
		}, 30*time.Second, time.Millisecond, "both sides of a connection of the earlier broker")
	}()
	got, err := run(w, time.Minute, nil, program)
	<-replaced
	require.NoError(t, err, got)
	require.Equal(t, want, got)
	require.NotZero(t, w.Counters().Promoted)
}

// TestAnotherBrokerIsAsked checks that an end that waits for the answer of a broker which ends asks the next one, although
// its program only writes and has no other connection.
func TestAnotherBrokerIsAsked(t *testing.T) {
	c := broker.Config{Thresholds: broker.Thresholds{Calls: 1}}
	w := openWorld(t, shared.For(t).Library(), c)
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		got, err := run(w, time.Minute, nil, shared.For(t).Program("another"), strconv.Itoa(l.Addr().(*net.TCPAddr).Port))
		assert.NoError(t, err, got)
	}()
	peer, err := l.Accept()
	require.NoError(t, err)
	go func() { _, _ = io.Copy(io.Discard, peer) }()
	waits := func() bool { return w.Counters().Waiting == 1 }
	require.Eventually(t, waits, 30*time.Second, time.Millisecond)
	require.NoError(t, w.Replace(c))
	assert.Eventually(t, waits, 20*time.Second, time.Millisecond, "it asks again")
	require.NoError(t, peer.Close())
	<-ended
}
