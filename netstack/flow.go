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

// flow is one wire leg: the state that the shim keeps per tuple. Fields without a lock are set before the flow is put
// into the table.
type flow struct {
	key    tupleKey
	server bool
	isn    uint32 // sequence number of the client's SYN on the wire
	nonce  uint16

	leg      atomic.Uint32 // legState
	carrying atomic.Bool   // SYNs from the network go to the endpoint
	asked    atomic.Bool   // an Ask waits for a segment of the peer
	conn     atomic.Pointer[Conn]
	// challenged is the last SYN that met the flow while it carried.
	challenged atomic.Pointer[challenged]

	// una and sent bound what the peer may quote in an ICMP error: our oldest unacknowledged and our next sequence
	// number on the wire.
	una, sent atomic.Uint32
	// awaited is the peer's next sequence number, as acknowledged.
	awaited atomic.Uint32
	strange segment.StrangeACKs
	// segMax is the largest TCP header plus payload that path and peer accept.
	segMax atomic.Uint32

	wq    *waiter.Queue
	rtt   time.Duration // of the handshake, as the owner gave it
	quick atomic.Bool   // do not delay acknowledgements
	grown atomic.Pointer[grown]
	// left is closed when gVisor has released the tuple: of earlier flows on it, and of this one once it is being led.
	// nil means that it has. Conn.mu guards it until the flow is over.
	left <-chan struct{}

	adopt *adoption // client only
	serve *serving  // server only
}

// challenged is a SYN that was passed to the endpoint to answer.
type challenged struct {
	isn uint32
	raw []byte
	at  tcpip.MonotonicTime
}

// refuses reports whether the outbound segment t would refuse the connection of the SYN that met the flow, as an
// endpoint that has just ended does. The endpoint must not speak for the listener.
func (f *flow) refuses(t packet.TCP) bool {
	c := f.challenged.Load()
	return c != nil && t.Flags()&(packet.FlagRST|packet.FlagACK) == packet.FlagRST|packet.FlagACK && t.Ack() == c.isn+1
}

// challengedFor is how long before the end of its flow a SYN may have come to be handled again. An earlier one has
// surely been answered with a challenge ACK.
const challengedFor = 200 * time.Millisecond

// adoption is the client's part of a flow.
type adoption struct {
	app       packet.TCPOptions // of the application's SYN
	peer      packet.TCPOptions // of the SYN-ACK
	look      look              // of the application's SYN
	window    uint16            // of the SYN-ACK
	confirmed atomic.Bool       // the peer has acknowledged more than ISN+1: stop sending the confirm option
	iss       uint32            // sequence number of the SYN-ACK
}

// serving is the server's part of a flow.
type serving struct {
	confirm atomic.Uint32 // Confirmation
	proof   *cookieProof
}

// roundTrip returns the round trip of the handshake, or a guess.
func (f *flow) roundTrip() time.Duration {
	if f.rtt <= 0 {
		return unknownRTT
	}
	return f.rtt
}

// noteSent raises sent, in sequence numbers of the wire.
func (f *flow) noteSent(next uint32) {
	for {
		old := f.sent.Load()
		if !packet.After(next, old) || f.sent.CompareAndSwap(old, next) {
			return
		}
	}
}

// noteAcked raises una.
func (f *flow) noteAcked(ack uint32) {
	for {
		old := f.una.Load()
		if !packet.After(ack, old) || packet.After(ack, f.sent.Load()) || f.una.CompareAndSwap(old, ack) {
			return
		}
	}
}

// flowTable holds live and dead flows by tuple. Its lock is a leaf: nothing else is called while it is held.
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

// put adds f, which may replace a dead flow.
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

// full reports whether another connection would exceed the bound.
func (t *flowTable) full(lim Limits) bool {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.live >= lim.Flows
}

// bury keeps f, which has just ended, for the linger time. It is called once per flow.
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

// sweep removes flows whose linger time is over.
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
