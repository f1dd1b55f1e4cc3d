package netstack

import (
	"sync"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip/stack"

	"github.com/smcgw/smcgw/packet"
)

// ackTick is how long an acknowledgement waits at least, and half of how long at
// most, for something that takes it along. It is well below the shortest
// retransmission timeout.
const ackTick = 4 * time.Millisecond

// heldACK is the acknowledgement of one flow that waits for something to take it
// along. gVisor acknowledges every segment at once; of a handshake and of records,
// which are one segment each, half of all packets would be that. The third segment
// of an adopted connection waits as well: the PROPOSAL is right after it.
type heldACK struct {
	mu    sync.Mutex // guards everything below
	pkt   *stack.PacketBuffer
	out   uint32 // the acknowledgement number that was last let out
	last  uint32 // the one that was last let out or held
	known bool   // both are valid
	due   bool   // in the list of ackHolder
	over  bool   // the flow is: nothing is held any more
}

// heldBytes is how much may be unacknowledged beyond what was let out: less than
// two full segments (RFC 5681 4.2), of any path. Records are a few bytes each.
const heldBytes = 1024

// hold reports whether the outbound segment t in packet p stays here for a while,
// and fresh whether the flow is to be put on the list. Everything else that leaves
// takes the place of what is held; so does a later acknowledgement, which waits in
// its place, until there is too much of it. quick: none waits.
func (a *heldACK) hold(p *stack.PacketBuffer, t packet.TCP, quick bool) (held, fresh bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.dropLocked()
	ack := t.Ack()
	if t.Flags()&packet.FlagACK == 0 {
		return false, false
	}
	if !a.known {
		a.out, a.last, a.known = ack, ack-1, true
	}
	news := packet.After(ack, a.last)
	if news {
		a.last = ack
	}
	if !news || ack-a.out > heldBytes || a.over || quick || !bareACK(p, t) {
		a.out = a.last
		return false, false
	}
	a.pkt = p.IncRef()
	fresh, a.due = !a.due, true
	return true, fresh
}

// bareACK reports whether a segment does nothing but acknowledge what came in
// order.
func bareACK(p *stack.PacketBuffer, t packet.TCP) bool {
	const flags = packet.FlagSYN | packet.FlagFIN | packet.FlagRST | packet.FlagACK
	return t.Flags()&flags == packet.FlagACK && p.Data().Size() == 0 && !selective(t)
}

// selective reports whether a segment says that bytes are missing in front of others.
func selective(t packet.TCP) bool {
	for _, o := range t.Options().All() {
		if o.Kind() == packet.KindSACK {
			return true
		}
	}
	return false
}

func (a *heldACK) dropLocked() {
	if a.pkt != nil {
		a.pkt.DecRef()
		a.pkt = nil
	}
}

// take returns what is held; the caller sends it or drops it.
func (a *heldACK) take() *stack.PacketBuffer {
	a.mu.Lock()
	defer a.mu.Unlock()
	p := a.pkt
	a.pkt, a.due, a.out = nil, false, a.last
	return p
}

// drop forgets what is held: the flow is over. What gVisor still sends for it, on
// another goroutine, is not held either, since nothing would release it.
func (a *heldACK) drop() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.over = true
	a.dropLocked()
}

// ackHolder lets acknowledgements out that nothing took along. A flow is on one
// of its lists at most once; a list is let out between one tick and two after
// the first of it.
type ackHolder struct {
	s *Stack

	mu       sync.Mutex // guards everything below
	old, new []*flow
	armed    bool
}

func (h *ackHolder) add(f *flow) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.new = append(h.new, f)
	h.armLocked()
}

func (h *ackHolder) armLocked() {
	if !h.armed {
		h.armed = true
		h.s.clock.AfterFunc(ackTick, h.tick)
	}
}

func (h *ackHolder) tick() {
	if !h.s.hold() {
		return
	}
	defer h.s.release()
	h.mu.Lock()
	due := h.old
	h.old, h.new, h.armed = h.new, nil, false
	if len(h.old) > 0 {
		h.armLocked()
	}
	h.mu.Unlock()
	for _, f := range due {
		h.s.letOut(f)
	}
}

// letOut sends what is held of a flow that is not over.
func (s *Stack) letOut(f *flow) {
	if c := f.conn.Load(); c != nil {
		c.letOut()
	}
	g := f.grown.Load()
	if g == nil {
		return
	}
	switch p := g.acks.take(); {
	case p == nil:
	case f.alive():
		s.count.acksLate.Add(1)
		s.shim.send(p)
	default:
		p.DecRef()
	}
}

// quickACK lets what is held out, and everything from here on at once.
func (s *Stack) quickACK(f *flow) {
	if !f.quick.Swap(true) && s.hold() {
		defer s.release()
		s.letOut(f)
	}
}
