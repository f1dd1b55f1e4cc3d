package resolve

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/smcgw/smcgw/negotiate"
	"github.com/smcgw/smcgw/negotiate/internal/clc"
)

// TestResolverModel lets two resolvers find each other over a network that loses, delays, repeats and reorders, with
// carriers that fail and gateways that start again, and checks after every step what must always hold; then everything
// heals, and both must be capable in bounded time.
func TestResolverModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newResolverWorld(t)
		for range rapid.IntRange(0, 80).Draw(t, "steps") {
			w.step()
		}
		w.heal()
	})
}

// resolverWorld is two hosts and what is between them. Time is virtual.
type resolverWorld struct {
	t      *rapid.T
	now    time.Time
	events []event
	hosts  [2]*resolverHost

	keys   negotiate.Keys // of both
	healed bool
	cut    bool // no message arrives
	seen   []SendResolution
	down   map[negotiate.CarrierKind]bool
}

// resolverHost is one host with its gateway.
type resolverHost struct {
	w     *resolverWorld
	addr  netip.Addr
	named bool // the peer, by its operator
	peer  *resolverHost
	r     *Resolver
	life  uint32 // counts starts of the gateway; it is in its id and in its queue pairs

	answering   bool       // our offers are known: the query has had them looked for
	way         *ProvePeer // the last one, nil after PeerGone
	proved      bool       // the result of way was true
	capable     bool
	sent, heard time.Time

	queries []time.Time
	asked   QueryNonce // by the last of them
	fresh   int        // news since the last query
	known   bool       // there were news
}

func (h *resolverHost) port() netip.AddrPort { return netip.AddrPortFrom(h.addr, defaultDatagramPort) }

func (h *resolverHost) id() (id [16]byte) {
	copy(id[:], h.addr.AsSlice())
	binary.BigEndian.PutUint32(id[4:], h.life)
	return id
}

func newResolverWorld(t *rapid.T) *resolverWorld {
	w := &resolverWorld{t: t, now: t0, down: map[negotiate.CarrierKind]bool{}}
	if rapid.Bool().Draw(t, "keys") {
		w.keys = negotiate.Keys{testKey}
	}
	for i, a := range []netip.Addr{addrA, addrB} {
		w.hosts[i] = &resolverHost{w: w, addr: a, named: rapid.Bool().Draw(t, "named")}
	}
	for i, h := range w.hosts {
		h.peer = w.hosts[1-i]
		h.start()
	}
	return w
}

// start is the start of a gateway, the first or another.
func (h *resolverHost) start() {
	h.life++
	h.way, h.proved, h.capable = nil, false, false
	h.queries, h.fresh, h.known = nil, 0, false
	nonces := uint32(0)
	h.r = NewResolver(ResolverConfig{
		GatewayID: h.id(), HostID: [16]byte{1}, Keys: h.w.keys, Carriers: []negotiate.CarrierKind{negotiate.CarrierSHM, negotiate.CarrierSoft},
		Nonce: func() [16]byte {
			nonces++
			id := h.id()
			binary.BigEndian.PutUint32(id[12:], nonces)
			return id
		},
		Offers: func(local, peer netip.Addr) []UDOffer {
			require.Equal(h.w.t, h.addr, local)
			require.Equal(h.w.t, h.peer.addr, peer)
			if !h.answering && !h.w.healed && rapid.IntRange(0, 3).Draw(h.w.t, "offers") == 0 { // they are looked for, perhaps in vain
				if d, ok := h.w.delay(false); ok {
					h.after(d, func() { h.run(h.r.Offered(peer, h.w.now)) })
				}
				return nil
			}
			shm := shmOffer(fmt.Sprintf("gw-%d", h.life))
			shm.QPN = h.life
			return []UDOffer{shm, softOffer(local, h.life)}
		},
		Admit: func(_, _ netip.Addr) negotiate.Reason { return negotiate.ReasonNone },
	})
}

// after lets something happen later, at a host whose gateway does not start again before.
func (h *resolverHost) after(d time.Duration, do func()) {
	life := h.life
	h.w.events = append(h.w.events, event{at: h.w.now.Add(d), order: len(h.w.events), do: func() {
		if h.life == life {
			do()
		}
	}})
}

// delay draws how long something is under way; false: it is lost.
func (w *resolverWorld) delay(cut bool) (time.Duration, bool) {
	if w.healed {
		return time.Millisecond, true
	}
	if cut || rapid.IntRange(0, 9).Draw(w.t, "lost") < 2 {
		return 0, false
	}
	return time.Duration(rapid.IntRange(1, 1000).Draw(w.t, "delay")) * 3 * time.Millisecond, true
}

// step is one thing that happens.
func (w *resolverWorld) step() {
	h := w.hosts[rapid.IntRange(0, 1).Draw(w.t, "host")]
	switch rapid.IntRange(0, 12).Draw(w.t, "event") {
	case 0, 1, 2:
		h.use()
	case 3:
		h.hears()
	case 4:
		w.cut = !w.cut
	case 5:
		kind := rapid.SampledFrom([]negotiate.CarrierKind{negotiate.CarrierSHM, negotiate.CarrierSoft}).Draw(w.t, "carrier")
		w.down[kind] = !w.down[kind]
	case 6:
		h.start()
	case 7:
		h.run(h.r.Hangup(h.peer.addr, w.now))
	case 8:
		h.run(h.r.Flush())
	case 9:
		h.forged()
	default:
		w.advance(time.Duration(rapid.IntRange(1, 200).Draw(w.t, "time")) * rapid.SampledFrom([]time.Duration{
			10 * time.Millisecond, 100 * time.Millisecond, time.Second, 10 * time.Second,
		}).Draw(w.t, "unit"))
	}
}

// use is an application that sends a datagram.
func (h *resolverHost) use() {
	h.run(h.r.Want(h.addr, h.peer.addr, h.named, h.w.now))
	if h.capable {
		h.transmit(func() {})
	}
}

// forged is a message repeated in the name of the peer: one of its own, or one of ours.
func (h *resolverHost) forged() {
	if len(h.w.seen) == 0 {
		return
	}
	m := rapid.SampledFrom(h.w.seen).Draw(h.w.t, "message")
	h.receive(m.Bytes)
}

// receive is a message from the peer's port.
func (h *resolverHost) receive(b []byte) {
	if head, _, err := clc.ParseHeader(b); err == nil && head.Type == clc.TypeResolve {
		h.fresh++
		h.known = true
	}
	h.answering = true
	todo := receive(h.r, h.port(), h.peer.port(), b, h.w.now)
	h.answering = false
	h.run(todo)
}

// hears is a CLC message of the peer.
func (h *resolverHost) hears() {
	h.fresh++
	h.known = true
	h.run(h.r.News(h.addr, h.peer.port(), h.peer.id(), h.w.now))
}

// transmit sends something on the way of h; then is called when it has arrived and was understood.
func (h *resolverHost) transmit(then func()) {
	way := h.way
	h.sent = h.w.now
	d, ok := h.w.delay(h.w.down[way.Offer.Kind])
	if !ok {
		return
	}
	h.peer.after(d, func() {
		if way.Offer.QPN == h.peer.life { // its queue pair is still there
			h.peer.heard = h.w.now
			then()
		}
	})
}

// echo sends a probe; then is called when its echo is back.
func (h *resolverHost) echo(then func()) {
	way := h.way
	h.transmit(func() {
		d, ok := h.w.delay(h.w.down[way.Offer.Kind])
		if ok {
			h.after(d, then)
		}
	})
}

// run executes actions.
func (h *resolverHost) run(todo []ResolverAction) {
	t := h.w.t
	for _, a := range todo {
		switch a := a.(type) {
		case SendResolution:
			h.send(a)
		case AnswerPeer:
			require.Fail(t, "a query without its answer")
		case ExpectPeer:
			require.Equal(t, h.peer.addr, a.Peer)
		case ProvePeer:
			h.proves(a)
		case ProbePeer:
			require.True(t, h.capable, "probe of a peer that is not proven")
			h.echo(func() { h.heard = h.w.now })
		case PeerCapable:
			require.True(t, h.proved, "capable without a proof")
			require.Equal(t, h.way.Offer, a.Offer)
			require.Equal(t, h.way.GatewayID, a.GatewayID)
			require.Positive(t, a.TTL)
			h.capable = true
		case PeerNative:
			require.Nil(t, h.way, "native with a way that was not given up")
			require.NotEqual(t, negotiate.ReasonNone, a.Reason)
			require.NotEqual(t, negotiate.ReasonAuthFailed, a.Reason, "refused by a peer that has the key")
			require.Positive(t, a.TTL)
			h.capable = false
		case PeerGone:
			require.NotNil(t, h.way)
			h.way, h.proved, h.capable = nil, false, false
		case PeerForgotten:
		}
	}
}

func (h *resolverHost) proves(a ProvePeer) {
	if h.way == nil || h.way.Proof != a.Proof {
		require.Equal(h.w.t, 1, a.Attempt)
		require.False(h.w.t, h.proved, "a proven way is given up first")
	}
	h.way = &a
	h.echo(func() {
		if h.way != nil && h.way.Proof == a.Proof {
			h.proved = true
		}
		h.run(h.r.Proved(a.Peer, a.Proof, true, h.w.now))
	})
}

// send brings a message to the peer, or not, or twice.
func (h *resolverHost) send(m SendResolution) {
	require.Equal(h.w.t, h.peer.port(), m.To)
	require.Equal(h.w.t, h.addr, m.From)
	head, _, err := clc.ParseHeader(m.Bytes)
	require.NoError(h.w.t, err)
	if head.Type == clc.TypeResolve {
		h.queried(m.Bytes)
	} else {
		require.Less(h.w.t, len(m.Bytes), minQueryLen)
	}
	h.w.seen = append(h.w.seen, m)
	copies := 1
	if !h.w.healed && rapid.IntRange(0, 9).Draw(h.w.t, "copies") == 0 {
		copies = 2
	}
	for range copies {
		d, ok := h.w.delay(h.w.cut)
		if !ok {
			continue
		}
		to := h.peer
		h.w.events = append(h.w.events, event{at: h.w.now.Add(d), order: len(h.w.events), do: func() { to.receive(m.Bytes) }})
	}
}

// queried checks that a query is one of those that are allowed.
func (h *resolverHost) queried(msg []byte) {
	t := h.w.t
	require.GreaterOrEqual(t, len(msg), minQueryLen)
	q, err := parseResolve(msg)
	require.NoError(t, err)
	if q.Cookie != (Cookie{}) { // the last one again
		require.Equal(t, h.asked, q.Nonce)
		return
	}
	h.asked = q.Nonce
	require.True(t, h.named || h.known, "a query to a host of which nothing is known")
	if n := len(h.queries); n > 0 {
		d := h.w.now.Sub(h.queries[n-1])
		require.GreaterOrEqual(t, d, freshInterval)
		require.True(t, d >= queryInterval || h.fresh > 0, "a query %v after the last, without news", d)
	}
	h.queries = append(h.queries, h.w.now)
	h.fresh = 0
}

// advance lets time pass, with all that happens meanwhile.
func (w *resolverWorld) advance(d time.Duration) {
	end := w.now.Add(d)
	for {
		next, at := -1, end
		for i, e := range w.events {
			if e.at.Before(at) || e.at.Equal(at) && next >= 0 && e.order < w.events[next].order {
				next, at = i, e.at
			}
		}
		due := w.due(at)
		switch {
		case due.Before(at):
			if due.After(w.now) { // traffic may have made it earlier
				w.now = due
			}
			w.tick()
		case next >= 0:
			w.now = at
			do := w.events[next].do
			w.events = append(w.events[:next], w.events[next+1:]...)
			do()
		default:
			w.now = end
			w.tick()
			return
		}
	}
}

// due is when the first of the resolvers wants to be called, at most at end.
func (w *resolverWorld) due(end time.Time) time.Time {
	for _, h := range w.hosts {
		h.r.Traffic(h.peer.addr, h.sent, h.heard, w.now)
		if d := h.r.Deadline(); !d.IsZero() && d.Before(end) {
			end = d
		}
	}
	return end
}

func (w *resolverWorld) tick() {
	for _, h := range w.hosts {
		h.r.Traffic(h.peer.addr, h.sent, h.heard, w.now)
		h.run(h.r.Tick(w.now))
		if d := h.r.Deadline(); !d.IsZero() {
			require.True(w.t, d.After(w.now), "the deadline %v is not ahead", d.Sub(w.now))
		}
		require.LessOrEqual(w.t, len(h.r.peers), 1)
	}
}

// heal makes everything work again and expects both sides to find each other, while applications send and the hosts hear
// of each other.
func (w *resolverWorld) heal() {
	w.healed, w.cut = true, false
	clear(w.down)
	good := func(h *resolverHost) bool { return h.capable && h.way.GatewayID == h.peer.id() }
	// A renewal that was lost before is tried again after a minute, and the answer may end until then.
	for range 2 * (queryInterval + answerTimeout) / time.Second {
		for _, h := range w.hosts {
			h.use()
		}
		w.advance(500 * time.Millisecond)
	}
	// What was under way may take 3 s and count for an answer; then a minute until the next query, and the proofs.
	const bound = 3*time.Second + queryInterval + answerTimeout + 2*probeTries*probeInterval
	for end := w.now.Add(bound); !good(w.hosts[0]) || !good(w.hosts[1]); {
		require.True(w.t, w.now.Before(end), "not capable after %v: %v and %v", bound, w.hosts[0].r.peers, w.hosts[1].r.peers)
		for _, h := range w.hosts {
			h.hears()
			h.use()
		}
		w.advance(500 * time.Millisecond)
	}
	// And stay so.
	for range 40 {
		for _, h := range w.hosts {
			h.use()
		}
		w.advance(30 * time.Second)
		require.True(w.t, good(w.hosts[0]) && good(w.hosts[1]))
	}
}
