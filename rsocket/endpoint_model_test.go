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
	wants bool // the producer said that the owner has to pump
	pumps bool // the owner pumps after its completions
}

type world struct {
	net    *fakeNet
	pool   *rmb.Pool
	arenas [2]*rmb.Arena
}

// connectEndpoints connects two endpoints. One that copies has a queue pair that does not show its peer's memory.
func connectEndpoints(t require.TestingT, cfgs [2]EndpointConfig, copies [2]bool) (*owner, *owner, *world) {
	w := &world{net: &fakeNet{}}
	var err error
	w.pool, err = rmb.NewPool(rmb.PoolConfig{})
	require.NoError(t, err)
	x, y := newQPs(w.net, cfgs[0].QPCap(), cfgs[1].QPCap())
	var owners [2]*owner
	for i, qp := range []*fakeQP{x, y} {
		w.arenas[i] = w.pool.Arena(w.net)
		var shown verbs.QP = mapQP{qp}
		if copies[i] {
			shown = qp
		}
		e, err := NewEndpoint(shown, w.arenas[i], cfgs[i])
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

// produce fills the send buffer, as a goroutine of its own may do.
func (o *owner) produce(n int) int {
	span := o.SendRing().Span()
	n = min(n, len(span))
	for i := range n {
		span[i] = o.next
		o.next++
	}
	o.sent.Write(span[:n])
	require.NoError(o.t, o.SendRing().Produce(n))
	o.wants = o.wants || o.SendRing().Wanting()
	return n
}

func (o *owner) pump() int {
	o.wants = false
	n, err := o.Pump()
	require.NoError(o.t, err)
	return n
}

// switchRing exchanges the ring for one of n bytes, if that is possible now.
func (o *owner) switchRing(t *rapid.T, n int) {
	if !o.CanSwitchRing() {
		return
	}
	r, err := o.arena.Alloc(n)
	require.NoError(t, err)
	require.NoError(t, o.SwitchRing(r))
	o.dropRing()
}

// dropRing frees what an exchange has left over, and spoils it before.
func (o *owner) dropRing() {
	if r := o.RetiredRing(); r != nil {
		for i := range r.Bytes() {
			r.Bytes()[i] = 0xee
		}
		require.NoError(o.t, r.Free())
	}
}

func (o *owner) read(n int) int {
	defer o.dropRing()
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
	if o.pumps {
		o.pump()
	}
	if ev.Has(EventWritable) {
		require.NotEmpty(o.t, o.writeSpan(), "writable in vain")
		o.space = true
	}
	return true
}

func settleOwners(owners ...*owner) (any bool) {
	for moved := true; moved; any = any || moved {
		moved = false
		for _, o := range owners {
			moved = o.qp.transfer() || moved
			moved = o.poll() || moved
			moved = o.read(1<<20) > 0 || moved
		}
	}
	return any
}

func drawEndpoints(t *rapid.T) (cfgs [2]EndpointConfig, copies [2]bool) {
	dialect := rapid.SampledFrom([]Dialect{Stock, Gateway}).Draw(t, "dialect")
	for i := range cfgs {
		copies[i] = rapid.Bool().Draw(t, "copy")
		cfgs[i] = EndpointConfig{
			Dialect:    dialect,
			RingSize:   rapid.IntRange(2, 9000).Draw(t, "ring"),
			SendBuffer: rapid.SampledFrom([]int{0, 5000}).Draw(t, "sndbuf"),
			Targets:    rapid.IntRange(2, 16).Draw(t, "targets"),
			Credits:    rapid.IntRange(2, 20).Draw(t, "credits"),
			SendDepth:  rapid.IntRange(8, 20).Draw(t, "depth"),
			Inline:     rapid.SampledFrom([]int{0, 8, 100}).Draw(t, "inline"),
		}
	}
	return cfgs, copies
}

// Two endpoints on a queue pair of any timing, mapped or not, against a byte buffer. A writer that found no span writes
// again only when told, so a lost wake-up leaves it without.
func TestEndpointModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cfgs, copies := drawEndpoints(t)
		a, b, w := connectEndpoints(t, cfgs, copies)
		pick := func(t *rapid.T) *owner { return rapid.SampledFrom([]*owner{a, b}).Draw(t, "side") }
		t.Repeat(map[string]func(*rapid.T){
			"write": func(t *rapid.T) {
				if o := pick(t); o.space {
					o.write(rapid.OneOf(rapid.IntRange(1, 10), rapid.IntRange(1, 9000)).Draw(t, "n"))
				}
			},
			"switch":   func(t *rapid.T) { pick(t).switchRing(t, rapid.IntRange(2, 20000).Draw(t, "ring")) },
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

// The same with a producer apart from the owner: what was produced always goes out as long as the owner pumps after
// its completions, and the buffer has room again.
func TestPumpModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cfgs, _ := drawEndpoints(t)
		a, b, w := connectEndpoints(t, cfgs, [2]bool{true, true})
		a.pumps, b.pumps = true, true
		pick := func(t *rapid.T) *owner { return rapid.SampledFrom([]*owner{a, b}).Draw(t, "side") }
		t.Repeat(map[string]func(*rapid.T){
			"produce": func(t *rapid.T) {
				pick(t).produce(rapid.OneOf(rapid.IntRange(1, 10), rapid.IntRange(1, 9000)).Draw(t, "n"))
			},
			"pump":     func(t *rapid.T) { pick(t).pump() },
			"transfer": func(t *rapid.T) { pick(t).qp.transfer() },
			"poll":     func(t *rapid.T) { pick(t).poll() },
			"read":     func(t *rapid.T) { pick(t).read(rapid.IntRange(1, 9000).Draw(t, "n")) },
			"":         func(t *rapid.T) { checkEndpoint(t, a); checkEndpoint(t, b) },
		})
		shut := rapid.Bool().Draw(t, "shut")
		for _, o := range []*owner{a, b} {
			if shut {
				require.NoError(t, o.Shutdown())
			}
		}
		for _, o := range []*owner{a, b} {
			if o.wants {
				o.pump()
			}
		}
		settleOwners(a, b)
		for _, o := range []*owner{a, b} {
			checkEndpoint(t, o)
			require.Zero(t, o.sent.Len(), "%s keeps bytes: %s", o.name, o.Blocked())
			if shut {
				require.Equal(t, StateDisconnected, o.State())
				require.True(t, o.Settled())
				continue
			}
			require.NotEmpty(t, o.SendRing().Span())
		}
		w.close(t, a, b)
	})
}

func checkEndpoint(t require.TestingT, o *owner) {
	require.NoError(t, o.Err(), o.name)
	require.Equal(t, int(o.SentOffset()-o.peer.ConsumedOffset())+o.Unposted(), o.sent.Len())
	if o.cfg.Dialect == Gateway {
		require.LessOrEqual(t, o.FreedOffset(), o.peer.ConsumedOffset())
	}
	if o.mapper == nil {
		// What the peer may still need is there to be sent again.
		for off := o.FreedOffset(); off < o.SentOffset(); off += uint64(len(o.Tail(off))) {
			require.NotEmpty(t, o.Tail(off))
		}
	}
	if o.cfg.Dialect == Gateway {
		checkTail(t, o)
	}
}

// checkTail compares what would be sent another way with what the peer has not consumed.
func checkTail(t require.TestingT, o *owner) {
	want := o.sent.Bytes()
	for off := o.peer.ConsumedOffset(); off < o.SentOffset(); {
		b := o.Tail(off)
		require.NotEmpty(t, b, o.name)
		require.True(t, bytes.Equal(want[:len(b)], b), "%s at %d", o.name, off)
		want = want[len(b):]
		off += uint64(len(b))
	}
	require.Empty(t, o.Tail(o.SentOffset()))
}

func gatewayEndpoints(t require.TestingT, copyA, copyB bool) (*owner, *owner, *world) {
	cfg := EndpointConfig{Dialect: Gateway}
	return connectEndpoints(t, [2]EndpointConfig{cfg, cfg}, [2]bool{copyA, copyB})
}
