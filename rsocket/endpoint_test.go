package rsocket

import (
	"bytes"
	"net"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/smcgw/smcgw/rmb"
	"github.com/smcgw/smcgw/verbs"
)

// owner drives one endpoint as an event loop does: it writes and reads only when told that it can.
type owner struct {
	*Endpoint
	t     require.TestingT
	qp    *fakeQP
	peer  *owner
	name  string
	sent  bytes.Buffer // not yet consumed by the peer
	next  byte
	seen  Events
	space bool // may write as far as it was told
}

type world struct {
	fabric *fabric
	pool   *rmb.Pool
	arenas [2]*rmb.Arena
}

func connectEndpoints(t require.TestingT, cfgs [2]EndpointConfig) (*owner, *owner, *world) {
	w := &world{fabric: &fabric{}}
	var err error
	w.pool, err = rmb.NewPool(rmb.PoolConfig{})
	require.NoError(t, err)
	x, y := newQPs(w.fabric, cfgs[0].QPCap(), cfgs[1].QPCap())
	var owners [2]*owner
	for i, qp := range []*fakeQP{x, y} {
		w.arenas[i] = w.pool.Arena(w.fabric)
		e, err := NewEndpoint(mapQP{qp}, w.arenas[i], cfgs[i])
		require.NoError(t, err)
		owners[i] = &owner{Endpoint: e, t: t, qp: qp, name: string(rune('a' + i)), next: byte(100 * i), space: true}
	}
	owners[0].peer, owners[1].peer = owners[1], owners[0]
	for i, o := range owners {
		require.NoError(t, o.Connect(owners[1-i].ConnData()))
		require.NoError(t, verbs.Connect(mapQP{o.qp}, verbs.ConnectAttr(1)))
		require.NoError(t, o.Start())
	}
	return owners[0], owners[1], w
}

// close ends both and checks that all memory is back.
func (w *world) close(t require.TestingT, owners ...*owner) {
	for _, o := range owners {
		require.NoError(t, o.Close())
		require.NoError(t, o.Close())
		require.Zero(t, o.HandleWC(&verbs.WC{WRID: RecvID, Status: verbs.WCWRFlushErr}))
		require.NoError(t, o.Release())
		require.NoError(t, o.Release())
	}
	require.Zero(t, w.pool.Stats().Used)
	require.Zero(t, w.pool.Stats().Quarantined)
	for _, a := range w.arenas {
		require.NoError(t, a.Close())
	}
}

func (o *owner) write(n int) int {
	span := o.WriteSpan()
	n = min(n, len(span))
	if o.space = len(span) > 0; n == 0 {
		require.True(o.t, n > 0 || o.Blocked() != NotBlocked || o.space)
		return 0
	}
	for i := range n {
		span[i] = o.next
		o.next++
	}
	o.sent.Write(span[:n])
	require.NoError(o.t, o.Commit(n))
	return n
}

func (o *owner) read(n int) int {
	span := o.ReadSpan()
	n = min(n, len(span))
	require.True(o.t, bytes.Equal(o.peer.sent.Next(n), span[:n]), "%s: wrong bytes at %d", o.name, o.ConsumedOffset())
	require.NoError(o.t, o.Consume(n))
	return n
}

// poll handles one completion.
func (o *owner) poll() bool {
	wc, ok := o.qp.poll()
	if !ok {
		return false
	}
	ev := o.HandleWC(&wc)
	o.seen |= ev
	if ev.Has(EventWritable) {
		require.NotEmpty(o.t, o.writeSpan(), "writable in vain")
		o.space = true
	}
	return true
}

func settleOwners(owners ...*owner) {
	for moved := true; moved; {
		moved = false
		for _, o := range owners {
			moved = o.qp.transfer() || moved
			moved = o.poll() || moved
			moved = o.read(1<<20) > 0 || moved
		}
	}
}

func drawEndpoints(t *rapid.T) (cfgs [2]EndpointConfig) {
	dialect := rapid.SampledFrom([]Dialect{Stock, Gateway}).Draw(t, "dialect")
	for i := range cfgs {
		cfgs[i] = EndpointConfig{
			Dialect:    dialect,
			RingSize:   rapid.IntRange(2, 9000).Draw(t, "ring"),
			SendBuffer: rapid.SampledFrom([]int{0, 5000}).Draw(t, "sndbuf"),
			Copy:       rapid.Bool().Draw(t, "copy"),
			Targets:    rapid.IntRange(2, 16).Draw(t, "targets"),
			Credits:    rapid.IntRange(2, 20).Draw(t, "credits"),
			SendDepth:  rapid.IntRange(8, 20).Draw(t, "depth"),
		}
	}
	return cfgs
}

// Two endpoints on a queue pair of any timing, mapped or not, against a byte buffer. A writer that found no span writes
// again only when told, so a lost wake-up leaves it without.
func TestEndpointModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b, w := connectEndpoints(t, drawEndpoints(t))
		pick := func(t *rapid.T) *owner { return rapid.SampledFrom([]*owner{a, b}).Draw(t, "side") }
		t.Repeat(map[string]func(*rapid.T){
			"write": func(t *rapid.T) {
				if o := pick(t); o.space {
					o.write(rapid.OneOf(rapid.IntRange(1, 10), rapid.IntRange(1, 9000)).Draw(t, "n"))
				}
			},
			"transfer": func(t *rapid.T) { pick(t).qp.transfer() },
			"poll":     func(t *rapid.T) { pick(t).poll() },
			"read":     func(t *rapid.T) { pick(t).read(rapid.IntRange(1, 9000).Draw(t, "n")) },
			"":         func(t *rapid.T) { checkEndpoint(t, a); checkEndpoint(t, b) },
		})
		settleOwners(a, b)
		for _, o := range []*owner{a, b} {
			checkEndpoint(t, o)
			require.Zero(t, o.sent.Len())
			require.True(t, o.space, "%s lost a wake-up: %s", o.name, o.Blocked())
			require.NotEmpty(t, o.WriteSpan())
			if o.cfg.Dialect == Gateway {
				require.Zero(t, o.qp.rnr, "a receive was missing")
			}
		}
		w.close(t, a, b)
	})
}

func checkEndpoint(t require.TestingT, o *owner) {
	require.NoError(t, o.Err(), o.name)
	require.Equal(t, int(o.SentOffset()-o.peer.ConsumedOffset()), o.sent.Len())
	if o.cfg.Dialect == Gateway {
		require.LessOrEqual(t, o.FreedOffset(), o.peer.ConsumedOffset())
	}
	if o.mapper == nil {
		// What the peer may still need is there to be sent again.
		for off := o.FreedOffset(); off < o.SentOffset(); off += uint64(len(o.Replay(off))) {
			require.NotEmpty(t, o.Replay(off))
		}
	}
}

func gatewayEndpoints(t require.TestingT, copyA, copyB bool) (*owner, *owner, *world) {
	cfg := EndpointConfig{Dialect: Gateway}
	a, b := cfg, cfg
	a.Copy, b.Copy = copyA, copyB
	return connectEndpoints(t, [2]EndpointConfig{a, b})
}

func TestReplayHoldsUnconsumedBytes(t *testing.T) {
	a, b, w := gatewayEndpoints(t, true, false)
	require.False(t, a.Mapped())
	require.True(t, b.Mapped())
	require.Equal(t, 1000, a.write(1000))
	want := bytes.Clone(a.sent.Bytes())
	for a.qp.transfer() {
	}
	for a.poll() || b.poll() {
	}
	require.Zero(t, a.FreedOffset(), "placed is not consumed")
	require.Equal(t, want[300:], a.Replay(300))
	require.Empty(t, a.Replay(1000))
	settleOwners(a, b)
	w.close(t, a, b)
}

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
	a, b, w := connectEndpoints(t, [2]EndpointConfig{cfg, cfg})
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
	a, b, w := gatewayEndpoints(t, false, false)
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
	f := &fabric{}
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

	cfg := EndpointConfig{Dialect: Gateway, Copy: true, SendBuffer: 4096}
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
