package netstack

import (
	"sync"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip/stack"

	"github.com/smcgw/smcgw/packet"
)

// ackTick is the least time that an acknowledgement waits for a segment that carries it, and half of the longest. It is
// well below the shortest retransmission timeout.
const ackTick = 4 * time.Millisecond

// heldACK is the delayed acknowledgement of one flow. gVisor acknowledges every segment immediately; for a handshake
// and for records, which are one segment each, that would be half of all packets. The third segment of an adopted
// connection is delayed, too, since the PROPOSAL follows right after it.
type heldACK struct {
	mu    sync.Mutex // guards everything below
	pkt   *stack.PacketBuffer
	out   uint32 // acknowledgement number last sent
	last  uint32 // acknowledgement number last sent or held
	known bool   // out and last are valid
	due   bool   // on a list of ackHolder
	over  bool   // the flow is over: hold nothing any more
}

// heldBytes is how many bytes may be unacknowledged beyond what was sent: less than two full segments (RFC 5681 4.2) on
// any path. Records are a few bytes each.
const heldBytes = 1024

// hold reports whether the outbound segment t in packet p is held back for a while, and fresh whether to put the flow
// on the list. Any segment that leaves replaces what is held. So does a later acknowledgement, which is held in its
// place, unless that covers too much. If quick is set, nothing is held.
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

// bareACK reports whether a segment does nothing but acknowledge what arrived in order.
func bareACK(p *stack.PacketBuffer, t packet.TCP) bool {
	const flags = packet.FlagSYN | packet.FlagFIN | packet.FlagRST | packet.FlagACK
	return t.Flags()&flags == packet.FlagACK && p.Data().Size() == 0 && !selective(t)
}

// selective reports whether a segment has SACK blocks, that is, reports missing bytes.
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

// take returns what is held; the caller sends or drops it.
func (a *heldACK) take() *stack.PacketBuffer {
	a.mu.Lock()
	defer a.mu.Unlock()
	p := a.pkt
	a.pkt, a.due, a.out = nil, false, a.last
	return p
}

// drop releases what is held, because the flow is over. Whatever gVisor still sends for it on another goroutine is not
// held either, since nothing would release it.
func (a *heldACK) drop() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.over = true
	a.dropLocked()
}

// ackHolder sends acknowledgements that no other segment carried. A flow is on at most one of its lists. A list is sent
// between one and two ticks after its first entry.
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

// letOut sends what is held for a flow that is not over.
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

// quickACK sends what is held, and stops holding anything for the flow.
func (s *Stack) quickACK(f *flow) {
	if !f.quick.Swap(true) && s.hold() {
		defer s.release()
		s.letOut(f)
	}
}
