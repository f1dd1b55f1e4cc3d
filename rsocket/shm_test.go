package rsocket

import (
	"bytes"
	"context"
	"crypto/rand"
	mathrand "math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/lab/loop"
	"github.com/smcgw/smcgw/rmb"
	"github.com/smcgw/smcgw/verbs"
	"github.com/smcgw/smcgw/verbs/shm"
)

// pattern is what travels: byte i of a direction is pattern[i % len(pattern)]. The length has no factor in common with
// any ring.
var pattern = func() []byte {
	b := make([]byte, 99991)
	r := mathrand.NewChaCha8([32]byte{})
	_, _ = r.Read(b)
	return b
}()

// pump is one side of a transfer over a real device with its own loop, which sleeps when there is nothing to do: a lost
// wake-up is a hang.
type pump struct {
	t     testing.TB
	dev   *shm.Device
	peer  *shm.Peer
	cq    verbs.CQ
	qp    verbs.QP
	ep    *Endpoint
	loop  *loop.Loop
	arena *rmb.Arena
	wcs   [16]verbs.WC

	running bool
	chunk   int
	total   uint64 // bytes to send
	seen    Events
	wrong   bool
	done    chan struct{} // closed when the stream is over
	proved  chan struct{}
}

func openShm(t testing.TB, dir string) *shm.Device {
	cfg := shm.Config{Dir: dir, PeerQuota: 16 << 20, HandshakeTimeout: patience}
	_, _ = rand.Read(cfg.GatewayID[:])
	d, err := shm.Open(cfg)
	require.NoError(t, err)
	return d
}

func newPumps(t *testing.T, cfg EndpointConfig) (*pump, *pump) {
	dir := t.TempDir()
	a, b := &pump{t: t, dev: openShm(t, dir)}, &pump{t: t, dev: openShm(t, dir)}
	l, err := a.dev.Listen()
	require.NoError(t, err)
	a.peer, err = a.dev.Offer()
	require.NoError(t, err)
	pool, err := rmb.NewPool(rmb.PoolConfig{})
	require.NoError(t, err)
	for _, p := range []*pump{a, b} {
		p.done, p.proved, p.chunk = make(chan struct{}), make(chan struct{}), 1<<20
		p.loop, err = loop.New(p.dev, 0, p.turn)
		require.NoError(t, err)
	}
	b.peer, err = b.dev.Attach(context.Background(), a.peer.Name(), a.peer.Key())
	require.NoError(t, err)
	for _, p := range []*pump{a, b} {
		p.create(pool, cfg)
	}
	require.Eventually(t, a.peer.Connected, 30*time.Second, time.Millisecond)
	for i, p := range []*pump{b, a} { // the server connects first
		other := []*pump{a, b}[i]
		p.do(func() {
			require.NoError(t, verbs.Connect(p.qp, verbs.ConnectAttr(other.qp.Num())))
			require.NoError(t, p.ep.Connect(other.ep.ConnData()))
			require.NoError(t, p.ep.Start())
			p.running = true
		})
	}
	t.Cleanup(func() {
		_ = l.Close()
		a.close()
		b.close()
	})
	return a, b
}

func (p *pump) create(pool *rmb.Pool, cfg EndpointConfig) {
	var err error
	size := cfg.QPCap()
	p.cq, err = p.dev.CreateCQ(verbs.CQAttr{Depth: size.MaxSendWR + size.MaxRecvWR})
	require.NoError(p.t, err)
	p.qp, err = p.peer.PD().CreateQP(&verbs.QPInitAttr{SendCQ: p.cq, RecvCQ: p.cq, Cap: size, Type: verbs.QPTRC})
	require.NoError(p.t, err)
	require.NoError(p.t, verbs.Init(p.qp, verbs.AccessLocalWrite|verbs.AccessRemoteWrite))
	p.arena = pool.Arena(p.peer.PD())
	p.ep, err = NewEndpoint(p.qp, p.arena, cfg)
	require.NoError(p.t, err)
	require.Equal(p.t, !cfg.copies && cfg.Dialect == Gateway, p.ep.mapper != nil)
}

func (p *pump) close() {
	p.do(func() {
		p.running = false
		require.NoError(p.t, p.qp.Close())
		require.NoError(p.t, p.ep.Close())
	})
	require.NoError(p.t, p.loop.Close())
	require.NoError(p.t, p.ep.Release())
	require.NoError(p.t, p.arena.Close())
	require.NoError(p.t, p.dev.Close())
}

func (p *pump) do(f func()) { require.NoError(p.t, p.loop.Do(f)) }

// turn is one turn of the loop: completions, then as much reading and writing as there is.
func (p *pump) turn() bool {
	if !p.running {
		return false
	}
	n, _ := p.cq.Poll(p.wcs[:])
	for i := range p.wcs[:n] {
		p.event(p.ep.HandleWC(&p.wcs[i]))
	}
	return p.read() || p.write() || n > 0
}

func (p *pump) event(ev Events) {
	if ev.Has(EventProved) && !p.seen.Has(EventProved) {
		close(p.proved)
	}
	over := EventDisconnected | EventFailed
	if ev&over != 0 && p.seen&over == 0 {
		close(p.done)
	}
	p.seen |= ev
}

func (p *pump) read() bool {
	span := p.ep.ReadSpan()
	for off := p.ep.ConsumedOffset(); len(span) > 0; off = p.ep.ConsumedOffset() {
		want := pattern[off%uint64(len(pattern)):]
		n := min(len(span), len(want))
		p.wrong = p.wrong || !bytes.Equal(want[:n], span[:n])
		_ = p.ep.Consume(n)
		span = span[n:]
		if len(span) == 0 {
			return true
		}
	}
	return false
}

func (p *pump) write() bool {
	left := p.total - p.ep.SentOffset()
	if left == 0 {
		return false
	}
	span := p.ep.WriteSpan()
	if len(span) == 0 {
		return false
	}
	from := pattern[p.ep.SentOffset()%uint64(len(pattern)):]
	n := copy(span, from[:min(uint64(len(from)), left, uint64(p.chunk))])
	_ = p.ep.Commit(n)
	if uint64(n) == left {
		_ = p.ep.Shutdown()
	}
	return true
}

const patience = 30 * time.Second

func waitFor(t testing.TB, what string, c <-chan struct{}) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(patience):
		t.Fatal(what)
	}
}

// Bytes both ways at once over shared memory, mapped and copied, in large and in tiny messages, after a probe.
func TestOverSharedMemory(t *testing.T) {
	for name, tc := range map[string]struct {
		cfg   EndpointConfig
		chunk int
		total uint64
	}{
		"mapped":      {EndpointConfig{}, 1 << 20, 64 << 20},
		"copied":      {EndpointConfig{copies: true}, 1 << 20, 32 << 20},
		"small ring":  {EndpointConfig{RingSize: 64 << 10}, 1 << 20, 16 << 20},
		"odd ring":    {EndpointConfig{RingSize: 10_007, Targets: 3}, 5000, 4 << 20},
		"tiny writes": {EndpointConfig{}, 7, 200_000},
		"few credits": {EndpointConfig{Credits: 2, SendDepth: 8}, 7, 20_000},
	} {
		t.Run(name, func(t *testing.T) {
			tc.cfg.Dialect = Gateway
			a, b := newPumps(t, tc.cfg)
			a.do(func() { require.NoError(t, a.ep.Probe(min(MaxProbe, tc.cfg.withDefaults().RingSize/2), 42)) })
			waitFor(t, "no proof", a.proved)
			for _, p := range []*pump{a, b} {
				p.do(func() { p.chunk, p.total = tc.chunk, tc.total })
			}
			for _, p := range []*pump{a, b} {
				waitFor(t, "transfer hangs", p.done)
				p.do(func() {
					for p.read() { // what wraps around the end of the ring
					}
					require.NoError(t, p.ep.Err())
					require.False(t, p.wrong)
					require.Equal(t, tc.total, p.ep.ConsumedOffset())
					require.Equal(t, tc.total, p.ep.SentOffset())
				})
			}
		})
	}
}

func TestPeerDeviceGone(t *testing.T) {
	a, b := newPumps(t, EndpointConfig{Dialect: Gateway})
	for _, p := range []*pump{a, b} {
		p.do(func() { p.total = 1 << 50 })
	}
	require.NoError(t, b.peer.Close())
	for _, p := range []*pump{a, b} {
		waitFor(t, "failure not noticed", p.done)
		p.do(func() {
			require.ErrorIs(t, p.ep.Err(), ErrConnection)
			require.False(t, p.wrong)
		})
	}
}
