package rsocket

import (
	"bytes"
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
