package socket

import (
	"context"
	"io"
	"net"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/rsocket"
	"github.com/smcgw/smcgw/rsocket/cm"
	"github.com/smcgw/smcgw/verbs"
)

// each runs a test with every kind of connection.
func each(t *testing.T, f func(t *testing.T, d *duo)) {
	for name, open := range duos {
		t.Run(name, func(t *testing.T) { f(t, open(t, StackConfig{})) })
	}
}

func TestConnHello(t *testing.T) {
	each(t, func(t *testing.T, d *duo) {
		a, b := d.pair(ConnConfig{})
		require.NoError(t, a.SetDeadline(time.Now().Add(patience)))
		require.NoError(t, b.SetDeadline(time.Now().Add(patience)))
		n, err := a.Write([]byte("hello"))
		require.NoError(t, err)
		require.Equal(t, 5, n)
		buf := make([]byte, 100)
		n, err = b.Read(buf)
		require.NoError(t, err)
		require.Equal(t, "hello", string(buf[:n]))
		_, err = b.Write([]byte("world"))
		require.NoError(t, err)
		require.NoError(t, b.CloseWrite())
		all, err := io.ReadAll(a)
		require.NoError(t, err)
		require.Equal(t, "world", string(all))
		require.NoError(t, a.Close())
		n, err = b.Read(buf)
		require.ErrorIs(t, err, io.EOF, "%d bytes", n)
		require.NoError(t, b.Close())
	})
}

// The peer writes into memory that was mapped for it, after what it wrote before and in front of what it writes after.
func TestConnIOMap(t *testing.T) {
	each(t, func(t *testing.T, d *duo) {
		a, b := d.pair(ConnConfig{IOMaps: 4})
		soon(t, a, b)
		m, err := b.MapIO(1<<20, 5000)
		require.NoError(t, err)
		require.Equal(t, int64(5000), m.Offset())
		other, err := b.MapIO(100, -1)
		require.NoError(t, err)
		_, err = b.Write([]byte("mapped"))
		require.NoError(t, err)
		_, err = io.ReadFull(a, make([]byte, 6))
		require.NoError(t, err)
		big := pattern[:90000]
		n, err := a.WriteAt(big, 5000+777)
		require.NoError(t, err)
		require.Equal(t, len(big), n)
		n, err = a.WriteAt([]byte("small"), other.Offset()+3)
		require.NoError(t, err)
		require.Equal(t, 5, n)
		n, err = a.WriteAt(make([]byte, 10), 5000+1<<20-4)
		require.ErrorIs(t, err, rsocket.ErrNotMapped)
		require.Equal(t, 4, n)
		_, err = a.Write([]byte("done"))
		require.NoError(t, err)
		_, err = io.ReadFull(b, make([]byte, 4))
		require.NoError(t, err)
		require.Equal(t, big, m.Bytes()[777:777+len(big)])
		require.Equal(t, "small", string(other.Bytes()[3:8]))
		require.NoError(t, other.Close())
		require.NoError(t, other.Close())
		require.NoError(t, a.Close())
		require.NoError(t, b.Close())
		require.NoError(t, m.Close())
		_, err = a.MapIO(100, 0)
		require.ErrorIs(t, err, net.ErrClosed)
	})
}

// Without slots there is no direct placement.
func TestConnNoIOMap(t *testing.T) {
	each(t, func(t *testing.T, d *duo) {
		a, b := d.pair(ConnConfig{})
		soon(t, a, b)
		_, err := a.MapIO(100, 0)
		require.ErrorIs(t, err, rsocket.ErrIOMapSlots)
		_, err = a.WriteAt([]byte("x"), 0)
		require.ErrorIs(t, err, rsocket.ErrNotMapped)
		_, err = a.WriteAt([]byte("x"), -1)
		require.ErrorIs(t, err, rsocket.ErrIOMap)
		require.NoError(t, a.Close())
		require.NoError(t, b.Close())
	})
}

// soon sets deadlines: what hangs fails.
// patience bounds the wait for what has to happen, on however slow a machine.
const patience = 30 * time.Second

func soon(t testing.TB, conns ...*Conn) {
	for _, c := range conns {
		require.NoError(t, c.SetDeadline(time.Now().Add(patience)))
	}
}

// A connection that was lost has been reset, whatever the communication manager knows of it.
func TestLossIsAReset(t *testing.T) {
	d := managedDuo(t)
	for _, why := range []error{
		&cm.RejectError{Reason: cm.RejectStaleConn}, &cm.RejectError{Reason: cm.RejectTimeout}, cm.ErrTimeout, cm.ErrClosed,
		io.EOF, syscall.EPIPE, os.ErrDeadlineExceeded,
	} {
		a, b := d.pair(ConnConfig{})
		a.lost(why)
		_, err := a.Read(make([]byte, 1))
		require.ErrorIs(t, err, syscall.ECONNRESET)
		require.ErrorContains(t, err, why.Error())
		for _, other := range []error{io.EOF, syscall.EPIPE, syscall.ECONNREFUSED, syscall.ETIMEDOUT, os.ErrDeadlineExceeded, net.ErrClosed} {
			require.NotErrorIs(t, err, other)
		}
		require.NoError(t, a.Close())
		require.NoError(t, b.Close())
	}
}

// What the peer sends before its connection data has been looked at is not lost: the queue pair is connected before.
func TestConnEarly(t *testing.T) {
	d := managedDuo(t)
	l := listenOn(t, d, ListenConfig{})
	a, err := d.a.newConn(ConnConfig{})
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	made, err := d.a.manager.Dial(ctx, cm.DialParams{QPParams: a.params(), Remote: l.cm.Addr(), PrivateData: a.ep.ConnData().Append(nil)})
	require.NoError(t, err)
	b, err := l.AcceptConn(ctx)
	require.NoError(t, err)
	soon(t, b)
	_, err = b.Write([]byte("early"))
	require.NoError(t, err)
	require.Eventually(t, func() (early bool) {
		_ = a.vec.Do(func() { early = len(a.early) > 1 })
		return early
	}, patience, time.Millisecond)
	peer, err := rsocket.ParseConnData(made.PrivateData())
	require.NoError(t, err)
	require.NoError(t, a.joinPeer(peer))
	require.NoError(t, a.begin(made))
	soon(t, a)
	buf := make([]byte, 5)
	_, err = io.ReadFull(a, buf)
	require.NoError(t, err)
	require.Equal(t, "early", string(buf))
	require.NoError(t, a.Close())
	require.NoError(t, b.Close())
}

// All that the peer's credits allow may be there before its connection data has been looked at; more ends the attempt.
func TestConnEarlyBurst(t *testing.T) {
	d := managedDuo(t)
	for _, extra := range []int{0, 1} {
		c, err := d.a.newConn(ConnConfig{})
		require.NoError(t, err)
		peer := c.ep.ConnData()
		n := rsocket.DefaultCredits
		if extra > 0 {
			n = c.ep.RecvDepth() + extra
		}
		require.NoError(t, c.vec.Do(func() {
			// Receives that completed are posted no more.
			require.NoError(t, c.qp.Modify(&verbs.QPAttr{State: verbs.QPSReset}, verbs.QPAttrState))
			require.NoError(t, verbs.Init(c.qp, peerAccess))
			for range n {
				c.complete(&verbs.WC{
					WRID: rsocket.RecvID, Opcode: verbs.WCRecvRDMAWithImm, ByteLen: 1, ImmData: uint32(rsocket.MakeImm(rsocket.OpData, 1)), QPNum: c.qp.Num(),
				})
			}
		}))
		err = c.joinPeer(peer)
		if extra > 0 {
			require.Error(t, err)
		} else {
			require.NoError(t, err)
			require.Equal(t, uint64(n), c.ep.ReceivedOffset())
		}
		require.NoError(t, c.discard())
	}
}

// Queues beyond what the device has are as large as it can make them, as rsockets do.
func TestConnQueueLimits(t *testing.T) {
	d := managedDuo(t)
	a, b := d.pair(ConnConfig{SendQueue: rsocket.MaxDepth, RecvQueue: rsocket.MaxDepth})
	soon(t, a, b)
	_, err := a.Write([]byte("x"))
	require.NoError(t, err)
	_, err = io.ReadFull(b, make([]byte, 1))
	require.NoError(t, err)
	require.NoError(t, a.Close())
	require.NoError(t, b.Close())
}

// The memory of a mapping is the program's until its Close, although the connection has ended.
func TestIOMapOutlivesConn(t *testing.T) {
	d := managedDuo(t)
	a, b := d.connect(ConnConfig{}, ConnConfig{IOMaps: 1})
	m, err := a.MapIO(1000, 0)
	require.NoError(t, err)
	require.NoError(t, a.Close())
	require.NoError(t, b.Close())
	waitFor(t, "nothing is left", a.done)
	require.Equal(t, 1, d.a.Stats().Pool.Regions)
	m.Bytes()[999] = 1
	require.NoError(t, m.Close())
	require.NoError(t, m.Close())
	require.Zero(t, d.a.Stats().Pool.Regions)
}
