package rsocket

import (
	"net"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/rmb"
	"github.com/smcgw/smcgw/verbs"
)

func TestEndpointProbe(t *testing.T) {
	for _, copies := range [][2]bool{{false, false}, {true, true}, {true, false}, {false, true}} {
		a, b, w := gatewayEndpoints(t, copies[0], copies[1])
		for seed := range uint64(2) {
			require.NoError(t, a.Probe(MaxProbe, seed))
			settleOwners(a, b)
			require.True(t, a.seen.Has(EventProved))
			require.True(t, b.seen.Has(EventProbe))
		}
		require.Zero(t, a.SentOffset()+a.ReceivedOffset()+b.SentOffset()+b.ReceivedOffset())
		require.Len(t, a.WriteSpan(), defaultRing, "the whole window is left")
		for range 20 {
			a.write(100_000)
			b.write(100_000)
			settleOwners(a, b)
		}
		require.NoError(t, a.Err())
		require.ErrorIs(t, a.Probe(MaxProbe, 1), ErrState)
		require.ErrorIs(t, a.Probe(defaultRing/2+1, 1), ErrState)
		require.ErrorIs(t, a.Probe(-1, 1), ErrState)
		w.close(t, a, b)
	}
}

func TestDamagedProbe(t *testing.T) {
	a, b, w := gatewayEndpoints(t, true, true)
	require.NoError(t, a.Probe(1000, 1))
	a.qp.transfer()
	b.stream.ProbeBytes(1000)[999] ^= 1
	settleOwners(a, b)
	require.ErrorIs(t, a.Err(), ErrProbe)
	require.True(t, a.seen.Has(EventFailed))
	require.False(t, a.seen.Has(EventProved))
	w.close(t, a, b)
}

// TestPlaced: bytes are known to have arrived when a completion after them says
// so; a keepalive is one.
func TestPlaced(t *testing.T) {
	a, b, w := gatewayEndpoints(t, true, true)
	require.True(t, a.Placed(), "nothing was sent")
	a.write(1000)
	settleOwners(a, b)
	require.False(t, a.Placed(), "the write was not signaled")
	require.NoError(t, a.Keepalive())
	require.False(t, a.Placed())
	settleOwners(a, b)
	require.True(t, a.Placed())
	w.close(t, a, b)
}

func TestEndpointShutdown(t *testing.T) {
	a, b, w := gatewayEndpoints(t, false, true)
	a.write(1000)
	require.NoError(t, a.Shutdown())
	settleOwners(a, b)
	require.True(t, b.seen.Has(EventShutdown))
	require.True(t, b.PeerShut())
	require.Equal(t, StateRemoteShut, b.State())
	b.write(100_000)
	settleOwners(a, b)
	require.NoError(t, b.Shutdown())
	settleOwners(a, b)
	require.Equal(t, StateDisconnected, a.State())
	require.Equal(t, StateDisconnected, b.State())
	require.True(t, a.Settled() && b.Settled())
	require.Empty(t, a.WriteSpan())
	require.Equal(t, BlockedClosed, a.Blocked())

	require.NoError(t, a.Close())
	require.NotZero(t, w.arenas[1].Stats().Used)
	require.Zero(t, w.arenas[0].Stats().Used, "the peer said that it is gone")
	require.NoError(t, b.Close())
	require.NotZero(t, w.pool.Stats().Quarantined, "the peer may still write")
	w.close(t, a, b)
}

// TestLostBehindCrossedShutdowns: both ends have shut down, but the last bytes
// of one are still under way when its queue pair fails. Only that failure tells
// of the loss.
func TestLostBehindCrossedShutdowns(t *testing.T) {
	a, b, w := gatewayEndpoints(t, false, true)
	a.write(1000)
	require.NoError(t, a.Shutdown())
	require.NoError(t, b.Shutdown())
	for b.qp.transfer() {
	}
	for a.poll() {
	}
	require.Equal(t, StateDisconnected, a.State())
	lost := a.HandleWC(&verbs.WC{Status: verbs.WCRetryExcErr})
	require.True(t, lost.Has(EventFailed))
	var failed *CompletionError
	require.ErrorAs(t, a.Err(), &failed)
	require.Equal(t, verbs.WCRetryExcErr, failed.Status)
	w.close(t, a, b)
}

func TestEndpointDisconnectIgnoresFlush(t *testing.T) {
	a, b, w := gatewayEndpoints(t, false, false)
	require.NoError(t, a.Disconnect())
	settleOwners(a, b)
	a.qp.down()
	b.qp.down()
	settleOwners(a, b)
	require.NoError(t, a.Err())
	require.NoError(t, b.Err())
	w.close(t, a, b)
}

func TestFailedCompletions(t *testing.T) {
	a, b, w := gatewayEndpoints(t, false, true)
	b.write(10)
	b.qp.transfer()
	a.qp.down()
	b.qp.down()
	for a.poll() || b.poll() {
	}
	for _, o := range []*owner{a, b} {
		require.True(t, o.seen.Has(EventFailed))
		require.ErrorIs(t, o.Err(), ErrConnection)
		var failed *CompletionError
		require.ErrorAs(t, o.Err(), &failed)
		require.Equal(t, verbs.WCWRFlushErr, failed.Status)
		require.Equal(t, StateFailed, o.State())
		require.Empty(t, o.WriteSpan())
		require.ErrorIs(t, o.Commit(1), ErrConnection)
		require.ErrorIs(t, o.Shutdown(), ErrConnection)
	}
	require.Len(t, a.ReadSpan(), 10, "received bytes stay readable")
	require.NoError(t, a.Consume(10))
	require.ErrorIs(t, a.Consume(1), rmb.ErrUnderrun)
	require.Empty(t, a.ReadSpan())
	require.NoError(t, b.Close())
	require.ErrorIs(t, b.Err(), ErrConnection, "the first reason stays")
	w.close(t, a, b)
}

func TestFailedPostAndMap(t *testing.T) {
	a, b, w := gatewayEndpoints(t, false, true)
	b.WriteSpan()[0] = 1
	b.qp.postErr = verbs.ErrRemoteGone
	require.ErrorIs(t, b.Commit(1), verbs.ErrRemoteGone)
	require.ErrorIs(t, b.Err(), ErrConnection)
	a.qp.state = verbs.QPSErr
	require.Empty(t, a.WriteSpan())
	require.Equal(t, BlockedClosed, a.Blocked())
	require.ErrorIs(t, a.Err(), verbs.ErrRemoteGone)
	w.close(t, a, b)
}

// A partner that connects late: the writer waits, and is woken.
func TestPartnerNotThereYet(t *testing.T) {
	a, b, w := gatewayEndpoints(t, false, false)
	a.qp.unbound = true
	for range 3 {
		require.Zero(t, a.write(10))
		require.Equal(t, BlockedSQ, a.Blocked())
	}
	require.Len(t, a.qp.sends, 1)
	settleOwners(a, b)
	require.False(t, a.space)
	a.qp.unbound = false
	settleOwners(a, b)
	require.True(t, a.space, "nothing tells the writer")
	require.Equal(t, 10, a.write(10))
	settleOwners(a, b)
	require.NoError(t, a.Err())
	w.close(t, a, b)
}

// A send buffer smaller than what could be sent without any signaled write.
func TestSmallSendBufferSignals(t *testing.T) {
	cfg := EndpointConfig{RingSize: 64 << 10, SendBuffer: 8 << 10}
	a, b, w := connectEndpoints(t, [2]EndpointConfig{cfg, cfg}, [2]bool{})
	require.Equal(t, 8<<10, a.write(64<<10))
	require.Zero(t, a.write(1))
	require.Equal(t, BlockedSndbuf, a.Blocked())
	settleOwners(a, b)
	require.True(t, a.space)
	w.close(t, a, b)
}

func TestForeignCompletion(t *testing.T) {
	a, b, w := gatewayEndpoints(t, false, false)
	require.True(t, a.HandleWC(&verbs.WC{WRID: RecvID, Opcode: verbs.WCRecv, ByteLen: 4}).Has(EventFailed))
	require.ErrorIs(t, a.Err(), ErrProtocol)
	require.Zero(t, a.HandleWC(&verbs.WC{WRID: RecvID, Opcode: verbs.WCRecv}), "failed is reported once")
	w.close(t, a, b)
}

func TestCommitWithoutSpan(t *testing.T) {
	a, b, w := gatewayEndpoints(t, true, false)
	for _, o := range []*owner{a, b} {
		require.ErrorIs(t, o.Commit(0), ErrBlocked)
		require.ErrorIs(t, o.Commit(-1), ErrBlocked)
		require.ErrorIs(t, o.Commit(defaultRing+1), ErrBlocked)
		require.NoError(t, o.Err())
	}
	w.close(t, a, b)
	require.ErrorIs(t, a.Err(), net.ErrClosed)
}

func TestBulkRingsAtOnce(t *testing.T) {
	a, b, w := gatewayEndpoints(t, true, false)
	require.Equal(t, 64<<10, a.write(64<<10))
	require.Equal(t, 1, a.qp.pushes)
	require.Equal(t, 100, a.write(100))
	require.Equal(t, 1, a.qp.pushes, "small writes wait for the end of the turn")
	settleOwners(a, b)
	w.close(t, a, b)
}

// Request and response of 64 bytes cost a credit message per half queue and direction, and nothing else.
func TestSmallMessagesCauseFewControls(t *testing.T) {
	a, b, w := gatewayEndpoints(t, false, false)
	for range 1280 {
		a.write(64)
		settleOwners(a, b)
		b.write(64)
		settleOwners(a, b)
	}
	require.LessOrEqual(t, a.qp.ctrls, 10)
	require.LessOrEqual(t, b.qp.ctrls, 10)
	w.close(t, a, b)
}

func TestNewEndpointErrors(t *testing.T) {
	f := &fakeNet{}
	pool, err := rmb.NewPool(rmb.PoolConfig{Limit: 2 << 20})
	require.NoError(t, err)
	arena := pool.Arena(f)
	for name, cfg := range map[string]EndpointConfig{
		"targets": {Targets: 17}, "one target": {Targets: 1}, "credits": {Credits: 1}, "depth": {SendDepth: 5}, "dialect": {Dialect: 9},
	} {
		qp, _ := newQPs(f, cfg.QPCap(), cfg.QPCap())
		_, err := NewEndpoint(qp, arena, cfg)
		require.ErrorIs(t, err, ErrConfig, name)
	}
	qp, _ := newQPs(f, verbs.QPCap{MaxRecvWR: 5}, verbs.QPCap{})
	_, err = NewEndpoint(qp, arena, EndpointConfig{})
	require.ErrorIs(t, err, verbs.ErrQueueFull)
	_, err = NewEndpoint(qp, arena, EndpointConfig{RingSize: 4 << 20})
	require.ErrorIs(t, err, rmb.ErrNoMemory)
	require.Zero(t, pool.Stats().Used, "nothing is left behind")

	cfg := EndpointConfig{Dialect: Gateway, SendBuffer: 4096}
	qp, _ = newQPs(f, cfg.QPCap(), cfg.QPCap())
	e, err := NewEndpoint(qp, arena, cfg)
	require.NoError(t, err)
	peer := exampleConn()
	require.ErrorIs(t, e.Connect(peer), rmb.ErrNoMemory, "send buffer too small for the peer's ring")
	require.ErrorIs(t, e.Err(), rmb.ErrNoMemory)
	require.NoError(t, e.Close())
	require.NoError(t, e.Release())
}

func endpointRound(a, b *owner, n int) {
	if span := a.WriteSpan(); len(span) > 0 {
		_ = a.Commit(min(n, len(span)))
	}
	for a.qp.transfer() {
	}
	for b.poll() {
	}
	_ = b.Consume(len(b.ReadSpan()))
	for b.qp.transfer() {
	}
	for a.poll() || b.poll() {
	}
}

func TestEndpointAllocatesNothing(t *testing.T) {
	for _, copies := range []bool{false, true} {
		a, b, w := gatewayEndpoints(t, copies, copies)
		for range 1000 { // lets the fake's own queues grow
			endpointRound(a, b, 1000)
		}
		require.Zero(t, testing.AllocsPerRun(2000, func() { endpointRound(a, b, 1000) }))
		require.Greater(t, b.ConsumedOffset(), uint64(2_000_000))
		w.close(t, a, b)
	}
}

func BenchmarkEndpoint(b *testing.B) {
	x, y, _ := gatewayEndpoints(b, false, false)
	b.ReportAllocs()
	for b.Loop() {
		endpointRound(x, y, 64)
	}
}
