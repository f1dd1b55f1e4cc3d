package rsocket

import (
	"bytes"
	"errors"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/smcgw/smcgw/rmb"
	"github.com/smcgw/smcgw/verbs"
)

// stockWorld is an endpoint of ours connected to a model of rdma-core's rsocket.
type stockWorld struct {
	*Endpoint
	t       require.TestingT
	qp      *fakeQP
	stock   *stockPeer
	arena   *rmb.Arena
	pool    *rmb.Pool
	nextOut byte
	nextIn  byte
	seen    Events
	wrote   map[uint64]byte // direct placement: what we wrote last, by the peer's offsets
	ours    []mapping       // announced to the peer
	theirs  []mapping
	torn    bool
}

type mapping struct {
	IOMapping
	mem []byte
}

func newStockWorld(t require.TestingT, cfg EndpointConfig, peer stockConfig, big bool) *stockWorld {
	f := &fakeNet{}
	w := &stockWorld{t: t, wrote: map[uint64]byte{}, nextIn: peer.firstByte, nextOut: peer.expectsFirstAt}
	other := verbs.QPCap{MaxSendWR: peer.sq, MaxRecvWR: peer.rq, MaxInline: 1 << 20}
	qp, stockQP := newQPs(f, cfg.QPCap(), other)
	var err error
	w.pool, err = rmb.NewPool(rmb.PoolConfig{})
	require.NoError(t, err)
	w.qp, w.arena = qp, w.pool.Arena(f)
	w.Endpoint, err = NewEndpoint(qp, w.arena, cfg)
	require.NoError(t, err)
	w.stream.bigEndian = big
	w.stock = newStockPeer(t, stockQP, peer)
	theirs, err := ParseConnData(w.stock.connData().Append(nil))
	require.NoError(t, err)
	ours, err := ParseConnData(w.ConnData().Append(nil))
	require.NoError(t, err)
	require.NoError(t, w.Connect(theirs))
	w.stock.connect(ours)
	require.NoError(t, verbs.Connect(qp, verbs.ConnectAttr(1)))
	require.NoError(t, verbs.Connect(stockQP, verbs.ConnectAttr(1)))
	require.NoError(t, w.Start())
	w.stock.step()
	return w
}

func (w *stockWorld) produce(n int) int {
	span := w.SendRing().Span()
	n = min(n, len(span))
	for i := range n {
		span[i] = w.nextOut
		w.nextOut++
	}
	require.NoError(w.t, w.SendRing().Produce(n))
	return n
}

func (w *stockWorld) pump() int {
	n, _ := w.Pump()
	return n
}

func (w *stockWorld) poll() bool {
	wc, ok := w.qp.poll()
	if ok {
		w.seen |= w.HandleWC(&wc)
	}
	return ok
}

func (w *stockWorld) read(n int) int {
	span := w.ReadSpan()
	n = min(n, len(span))
	for i := range n {
		if span[i] != w.nextIn {
			require.Equal(w.t, w.nextIn, span[i], "wrong byte at %d", w.ConsumedOffset())
		}
		w.nextIn++
	}
	if err := w.Consume(n); !w.torn {
		require.NoError(w.t, err)
	}
	return n
}

// settle lets both sides run until nothing moves any more.
func (w *stockWorld) settle() {
	for moved := true; moved; {
		moved = w.qp.transfer()
		moved = w.stock.qp.transfer() || moved
		moved = w.poll() || moved
		moved = w.pump() > 0 || moved
		moved = w.read(1<<20) > 0 || moved
		moved = w.stock.step() || moved
		moved = w.stock.recv(1<<20) > 0 || moved
		moved = w.stock.state&rsWritable != 0 && len(w.stock.announce) > 0 && w.stock.sendMaps() || moved
		moved = moved || len(w.stock.qp.sends) > 0 // credits of the last step
	}
}

func (w *stockWorld) newMemory(offset uint64, size int) mapping {
	mr, _ := w.qp.net.AllocMR(size, 0)
	return mapping{IOMapping{Offset: offset, Region: SGE{Addr: mr.Addr(), Key: mr.RKey(), Length: uint32(size)}}, mr.Bytes()}
}

// offer announces memory of ours; offsets of all mappings differ.
func (w *stockWorld) offer(size int) error {
	m := w.newMemory(uint64(len(w.ours))*10_000, size)
	err := w.AddIOMap(m.IOMapping)
	if err == nil {
		w.ours = append(w.ours, m)
	}
	return err
}

func (w *stockWorld) direct(p []byte, offset uint64) int {
	n, err := w.WriteDirect(p, offset)
	if err != nil {
		require.ErrorIs(w.t, err, ErrNotMapped)
	}
	for i := range n {
		w.wrote[offset+uint64(i)] = p[i]
	}
	return n
}

func checkPlaced(t require.TestingT, maps []mapping, wrote map[uint64]byte) {
	for offset, want := range wrote {
		found := false
		for _, m := range maps {
			if m.covers(offset) > 0 {
				found = true
				require.Equal(t, want, m.mem[offset-m.Offset], "direct write at %d", offset)
			}
		}
		require.True(t, found, "a direct write went where nothing is: %d", offset)
	}
}

func drawStockWorld(t *rapid.T) *stockWorld {
	cfg := EndpointConfig{
		RingSize:   rapid.IntRange(2, 9000).Draw(t, "ring"),
		SendBuffer: rapid.IntRange(1, 20_000).Draw(t, "sndbuf"),
		Targets:    rapid.IntRange(2, 16).Draw(t, "targets"),
		Credits:    rapid.IntRange(2, 40).Draw(t, "credits"),
		SendDepth:  rapid.IntRange(8, 40).Draw(t, "depth"),
		Inline:     rapid.SampledFrom([]int{0, 16, 200}).Draw(t, "inline"),
		IOMaps:     rapid.SampledFrom([]int{0, 1, 5}).Draw(t, "iomaps"),
	}
	peer := stockConfig{
		big: rapid.Bool().Draw(t, "stockBig"), sq: rapid.IntRange(16, 40).Draw(t, "sq"), rq: rapid.IntRange(16, 40).Draw(t, "rq"),
		rbuf: 2 * rapid.IntRange(1, 5000).Draw(t, "rbuf"), sbuf: rapid.IntRange(4096, 9000).Draw(t, "sbuf"),
		iomapSlots: rapid.SampledFrom([]int{0, 1, 128}).Draw(t, "stockMaps"), firstByte: 100, expectsFirstAt: 200,
	}
	return newStockWorld(t, cfg, peer, rapid.Bool().Draw(t, "big"))
}

// transfers are the actions that move bytes either way.
func (w *stockWorld) transfers() map[string]func(*rapid.T) {
	size := rapid.OneOf(rapid.IntRange(1, 10), rapid.IntRange(1, 9000))
	return map[string]func(*rapid.T){
		"produce":       func(t *rapid.T) { w.produce(size.Draw(t, "n")) },
		"pump":          func(*rapid.T) { w.pump() },
		"transfer":      func(*rapid.T) { w.qp.transfer() },
		"poll":          func(*rapid.T) { w.poll() },
		"read":          func(t *rapid.T) { w.read(size.Draw(t, "n")) },
		"keepalive":     func(*rapid.T) { _ = w.Keepalive() },
		"stockSend":     func(t *rapid.T) { w.stock.send(size.Draw(t, "n")) },
		"stockRecv":     func(t *rapid.T) { w.stock.recv(size.Draw(t, "n")) },
		"stockPoll":     func(t *rapid.T) { w.stock.processCQ(rapid.IntRange(1, 5).Draw(t, "n")) },
		"stockTransfer": func(*rapid.T) { w.stock.qp.transfer() },
		"stockStep":     func(*rapid.T) { w.stock.step() },
	}
}

// placements are the actions of direct placement either way.
func (w *stockWorld) placements(actions map[string]func(*rapid.T)) {
	bytesOf := func(t *rapid.T) []byte {
		n := rapid.IntRange(1, 300).Draw(t, "n")
		return bytes.Repeat([]byte{rapid.Byte().Draw(t, "b")}, n)
	}
	actions["map"] = func(t *rapid.T) { _ = w.offer(rapid.IntRange(1, 500).Draw(t, "size")) }
	actions["stockMap"] = func(t *rapid.T) {
		m := w.newMemory(uint64(len(w.theirs))*10_000, rapid.IntRange(1, 500).Draw(t, "size"))
		if w.stock.mapMemory(m.IOMapping) {
			w.theirs = append(w.theirs, m)
		}
	}
	actions["direct"] = func(t *rapid.T) {
		at := rapid.IntRange(0, 3).Draw(t, "map")*10_000 + rapid.IntRange(0, 600).Draw(t, "offset")
		w.direct(bytesOf(t), uint64(at))
	}
	actions["stockDirect"] = func(t *rapid.T) {
		at := rapid.IntRange(0, 3).Draw(t, "map")*10_000 + rapid.IntRange(0, 600).Draw(t, "offset")
		w.stock.writeDirect(bytesOf(t), uint64(at))
	}
}

// Bytes both ways and direct placement both ways, at any timing, in any byte orders: everything arrives and nothing is
// blocked at the end.
func TestAgainstStockPeer(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := drawStockWorld(t)
		actions := w.transfers()
		w.placements(actions)
		actions[""] = func(t *rapid.T) {
			require.NoError(t, w.Err())
			require.NotZero(t, w.stock.state&rsConnected)
			require.LessOrEqual(t, int(w.stream.ctrl.posted-w.stream.ctrl.done), ControlSlots)
		}
		t.Repeat(actions)
		w.settle()
		require.NoError(t, w.Err())
		require.Equal(t, rsRDWR, w.stock.state)
		require.Zero(t, w.Unposted())
		require.Equal(t, w.SentOffset(), w.stock.received, "%s", w.Blocked())
		require.Equal(t, w.stock.sent, w.ConsumedOffset())
		_, why := w.stream.Window()
		require.Equal(t, NotBlocked, why)
		require.True(t, w.stock.canSend())
		require.True(t, w.Placed())
		require.Zero(t, w.stock.qp.rnr, "a receive was missing")
		checkPlaced(t, w.theirs, w.wrote)
		checkPlaced(t, w.ours, w.stock.wrote)
		// Half a queue of one byte messages, and then as many again: no credit is lost for good.
		for range 3 * int(w.stock.rqSize) {
			require.Equal(t, 1, w.produce(1))
			w.settle()
		}
		require.Equal(t, w.SentOffset(), w.stock.received)
		require.Zero(t, w.Unposted())
	})
}

// The ends, in every order: half-closes and full ones from either side, at any time, crossing or not. Both are
// disconnected then, and what either side sent before its end and the other one still wanted has arrived.
func TestStockPeerEnds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := drawStockWorld(t)
		actions := w.transfers()
		cut := false
		ended := false // our direction: nothing may be produced any more
		produce := actions["produce"]
		actions["produce"] = func(t *rapid.T) {
			if !ended {
				produce(t)
			}
		}
		actions["shutdown"] = func(t *rapid.T) {
			_ = w.Shutdown()
			ended = true
		}
		actions["stockShutdown"] = func(*rapid.T) { w.stock.shutdown(false, true) }
		seldom := func(f func()) func(t *rapid.T) {
			return func(t *rapid.T) {
				if rapid.IntRange(0, 5).Draw(t, "seldom") == 0 {
					f()
					cut = true
				}
			}
		}
		actions["disconnect"] = seldom(func() {
			_ = w.Disconnect()
			ended = true
		})
		actions["stockDisconnect"] = seldom(func() { w.stock.shutdown(true, true) })
		actions["stockShutRead"] = seldom(func() { w.stock.shutdown(true, false) })
		actions["stockTeardown"] = func(*rapid.T) { w.teardown() }
		actions[""] = func(t *rapid.T) {
			if w.torn { // something may have been posted before the peer's last words were read
				require.True(t, w.Err() == nil || errors.Is(w.Err(), syscall.ECONNRESET), "%v", w.Err())
			} else {
				require.NoError(t, w.Err())
			}
		}
		t.Repeat(actions)
		_ = w.Shutdown()
		w.stock.shutdown(false, true)
		w.settle()
		actions[""](t)
		require.Equal(t, rsDisconnected, w.stock.state)
		if len(w.stock.wait) > 0 && !w.stream.PeerShut() && w.State() != StateDisconnected {
			require.True(t, w.torn || w.State() == StateLocalShut)
			w.teardown()
			w.settle()
			require.ErrorIs(t, w.Err(), syscall.ECONNRESET, "never an end without last words")
			return
		}
		if w.Err() == nil {
			require.Equal(t, StateDisconnected, w.State())
		}
		require.True(t, w.Settled())
		require.True(t, w.PeerShut() || cut, "no last words")
		require.Empty(t, w.WriteSpan())
		if !cut {
			require.True(t, w.seen.Has(EventShutdown) || w.stream.PeerGone())
			require.Equal(t, w.SentOffset(), w.stock.received)
			require.Equal(t, w.stock.sent, w.ConsumedOffset())
			require.Zero(t, w.Unposted())
		}
		w.teardown()
		w.settle()
		actions[""](t)
		require.NoError(t, w.Close())
		require.NoError(t, w.Release())
		require.Zero(t, w.pool.Stats().Used)
	})
}

// A stock peer that computes and never calls in: its credits end, or its ring, and nothing breaks. It gets everything when
// it reads at last.
func TestStockPeerThatNeverReads(t *testing.T) {
	for _, tc := range []struct {
		size int
		want Blocked
	}{{1, BlockedCredit}, {4000, BlockedGrant}} {
		w := newStockWorld(t, EndpointConfig{SendBuffer: 4 << 20}, mapped(0), false)
		w.settle()
		for range 500 {
			require.Equal(t, tc.size, w.produce(tc.size))
			_, err := w.pumpAll() // one message each
			require.NoError(t, err)
			for w.qp.transfer() || w.poll() {
			}
		}
		_, why := w.stream.Window()
		require.Equal(t, tc.want, why)
		require.Zero(t, w.qp.rnr, "the credits are the receives it has")
		sent := w.SentOffset()
		require.Equal(t, uint64(min(384*tc.size, 131072)), sent)
		require.NoError(t, w.Shutdown())
		require.Equal(t, StateOpen, w.State())
		w.settle()
		require.EqualValues(t, 500*tc.size, w.stock.received)
		require.Zero(t, w.stock.state&rsReadable)
		require.Equal(t, StateLocalShut, w.State())
	}
}

// pumpAll posts what was produced without letting it gather.
func (w *stockWorld) pumpAll() (int, error) { return w.Endpoint.pump(false) }

// Both sides end at the same time: the stock peer's DISCONNECT and ours cross, or its SHUTDOWN and our DISCONNECT.
func TestCrossedEndsWithStockPeer(t *testing.T) {
	for _, read := range []bool{false, true} {
		w := newStockWorld(t, EndpointConfig{}, mapped(0), false)
		w.settle()
		w.stock.send(100)
		w.stock.shutdown(read, true)
		w.produce(200)
		w.pump()
		require.NoError(t, w.Disconnect())
		for w.qp.transfer() {
		}
		for w.stock.qp.transfer() {
		}
		for w.poll() {
		}
		require.Equal(t, StateDisconnected, w.State())
		require.True(t, w.PeerShut())
		require.Len(t, w.ReadSpan(), 100)
		require.True(t, w.Settled())
		w.stock.step()
		require.Equal(t, rsDisconnected, w.stock.state)
		require.Equal(t, 200, w.stock.recv(1000), "what came before the end can be read after it")
		w.settle()
		require.NoError(t, w.Err())
	}
}

// teardown is the CM's disconnect, which the original does once it is disconnected, waiting for nothing of its own: what
// the hardware has not sent by then, its SHUTDOWN included, is lost. Here the hardware is quick enough.
func (w *stockWorld) teardown() {
	if w.stock.state == rsDisconnected && w.stock.qp.state != verbs.QPSErr {
		for w.stock.qp.transfer() {
		}
		w.qp.down()
		w.stock.qp.down()
		w.torn = true
	}
}
