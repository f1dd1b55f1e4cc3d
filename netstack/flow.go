package netstack

import (
	"net"
	"sync"
	"sync/atomic"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/waiter"

	"github.com/smcgw/smcgw/netstack/internal/segment"

	"github.com/smcgw/smcgw/packet"
)

// flow is one wire leg: what the shim must know per tuple. Fields without a
// lock are set before the flow is put into the table.
type flow struct {
	key    tupleKey
	server bool
	isn    uint32 // sequence number of the client's SYN on the wire
	nonce  uint16

	leg      atomic.Uint32 // legState
	carrying atomic.Bool   // a SYN from the network goes to the endpoint
	asked    atomic.Bool   // an Ask waits for a segment of the peer
	conn     atomic.Pointer[Conn]
	// challenged is the last SYN that met the flow while it carried.
	challenged atomic.Pointer[challenged]

	// una and sent bound what the peer may quote in an ICMP error: the oldest
	// unacknowledged and the next sequence number of ours, on the wire.
	una, sent atomic.Uint32
	// awaited is the next sequence number of the peer, as we told it.
	awaited atomic.Uint32
	strange segment.StrangeACKs
	// segMax is the largest TCP header plus payload that fits path and peer.
	segMax atomic.Uint32

	wq    *waiter.Queue
	rtt   time.Duration // of the handshake, as the owner knows it
	quick atomic.Bool   // no acknowledgement waits: bulk data, or a packet of another flow
	grown atomic.Pointer[grown]
	// left is closed when gVisor has let go of the tuple: of the flows before this one, and of this
	// one from the step on that has it led. nil: it has. Conn.mu guards it, until the flow is over.
	left <-chan struct{}

	adopt *adoption // client only
	serve *serving  // server only
}

// challenged is a SYN that was left to the endpoint to answer.
type challenged struct {
	isn uint32
	raw []byte
	at  tcpip.MonotonicTime
}

// refuses reports whether the outbound segment t would refuse the connection of
// the SYN that met the flow: an endpoint that has just ended does so. The
// listener is not the endpoint's to speak for.
func (f *flow) refuses(t packet.TCP) bool {
	c := f.challenged.Load()
	return c != nil && t.Flags()&(packet.FlagRST|packet.FlagACK) == packet.FlagRST|packet.FlagACK && t.Ack() == c.isn+1
}

// challengedFor is how long before the end of its flow a SYN may have come to
// be looked at again. Later ones were answered by a challenge ACK for sure.
const challengedFor = 200 * time.Millisecond

// adoption is the client's part of a flow.
type adoption struct {
	app       packet.TCPOptions // of the application's SYN
	peer      packet.TCPOptions // of the SYN-ACK
	look      look              // of the application's SYN
	window    uint16            // of the SYN-ACK
	confirmed atomic.Bool       // the peer has acknowledged beyond ISN+1: stop marking
	iss       uint32            // sequence number of the SYN-ACK
}

// serving is the server's part of a flow.
type serving struct {
	confirm atomic.Uint32 // Confirmation
	proof   *cookieProof
}

// roundTrip is what the handshake took, or a guess.
func (f *flow) roundTrip() time.Duration {
	if f.rtt <= 0 {
		return unknownRTT
	}
	return f.rtt
}

// noteSent moves the upper bound of what was sent; wire sequence numbers.
func (f *flow) noteSent(next uint32) {
	for {
		old := f.sent.Load()
		if !packet.After(next, old) || f.sent.CompareAndSwap(old, next) {
			return
		}
	}
}

// noteAcked moves the lower bound.
func (f *flow) noteAcked(ack uint32) {
	for {
		old := f.una.Load()
		if !packet.After(ack, old) || packet.After(ack, f.sent.Load()) || f.una.CompareAndSwap(old, ack) {
			return
		}
	}
}

// flowTable holds live and dead flows under their tuple. Its lock is a leaf:
// no call out of the table is made under it.
type flowTable struct {
	mu      sync.RWMutex // guards everything below
	m       map[tupleKey]*flow
	live    int
	closed  bool
	graves  []grave // dead flows, oldest first
	deadMax int
	evicted uint64
	timer   tcpip.Timer

	linger time.Duration
	clock  tcpip.Clock
}

type grave struct {
	f     *flow
	until tcpip.MonotonicTime
}

func (t *flowTable) get(k tupleKey) *flow {
	t.mu.RLock()
	f := t.m[k]
	t.mu.RUnlock()
	return f
}

// put adds f in place of a dead flow or none.
func (t *flowTable) put(f *flow, lim Limits) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	old := t.m[f.key]
	switch {
	case t.closed:
		return net.ErrClosed
	case old != nil && old.alive():
		if old.isn != f.isn || old.server != f.server {
			return ErrReplaced
		}
		if f.server {
			return errRepeated
		}
		return ErrAdopted
	case t.live >= lim.Flows:
		return ErrOverload
	}
	if old != nil {
		f.left = old.left
	}
	t.live++
	t.m[f.key] = f
	return nil
}

// full reports whether another connection would exceed a bound.
func (t *flowTable) full(lim Limits) bool {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.live >= lim.Flows
}

// bury keeps the flow f, just dead, for the linger time. It is called once per
// flow.
func (t *flowTable) bury(f *flow) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.live--
	if t.closed {
		return
	}
	for len(t.graves) >= t.deadMax {
		t.evicted++
		t.popLocked()
	}
	t.graves = append(t.graves, grave{f, t.clock.NowMonotonic().Add(t.linger)})
	if len(t.graves) == 1 {
		t.armLocked()
	}
}

// popLocked removes the oldest grave.
func (t *flowTable) popLocked() {
	f := t.graves[0].f
	t.graves[0] = grave{}
	t.graves = t.graves[1:]
	if t.m[f.key] == f {
		delete(t.m, f.key)
	}
}

func (t *flowTable) armLocked() {
	d := t.graves[0].until.Sub(t.clock.NowMonotonic())
	t.timer = t.clock.AfterFunc(max(d, time.Millisecond), t.sweep)
}

// sweep removes what has lingered long enough.
func (t *flowTable) sweep() {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := t.clock.NowMonotonic()
	for len(t.graves) > 0 && !t.graves[0].until.After(now) {
		t.popLocked()
	}
	if len(t.graves) > 0 && !t.closed {
		t.armLocked()
	}
}

// close refuses further flows and returns the live ones.
func (t *flowTable) close() []*flow {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closed = true
	if t.timer != nil {
		t.timer.Stop()
	}
	live := make([]*flow, 0, len(t.m))
	for _, f := range t.m {
		if f.alive() {
			live = append(live, f)
		}
	}
	return live
}

func (t *flowTable) sizes() (live, dead int, evicted uint64) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.live, len(t.graves), t.evicted
}
