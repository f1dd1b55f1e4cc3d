package wire

import (
	"math/rand/v2"
	"sync"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/stack"

	"github.com/smcgw/smcgw/netstack/link"
)

// Impairment says what a direction of a Wire does to packets. Rates are probabilities per packet.
type Impairment struct {
	Loss, Dup, Reorder float64
	// Delay is added to every packet.
	Delay time.Duration
	// Filter is called with every packet that was not lost, and returns what to pass on; nil drops the packet. It runs
	// on the goroutine of the direction.
	Filter func(pkt []byte) []byte
}

// reorderBy is how long a reordered packet is held back.
const reorderBy = 2 * time.Millisecond

// Wire joins two stacks in memory, like a cable with seeded faults.
type Wire struct {
	a, b End
}

// End is one end of a Wire. It is a link.Link.
type End struct {
	end  endpoint
	peer *End
	out  *pump

	mu      sync.Mutex // guards everything below
	rng     *rand.Rand
	imp     Impairment
	handler PacketFunc
}

type endpoint struct {
	bare
	send PacketFunc
}

// New returns a wire for packets of up to mtu bytes. seed determines the faults of both directions.
func New(mtu int, seed uint64) *Wire {
	w := &Wire{}
	for i, e := range []*End{&w.a, &w.b} {
		e.end.send = e.Send
		e.end.init(mtu)
		e.rng = rand.New(rand.NewPCG(seed, uint64(i)))
		e.out = newPump(e.carry)
	}
	w.a.peer, w.b.peer = &w.b, &w.a
	return w
}

// A returns the first end.
func (w *Wire) A() *End { return &w.a }

// B returns the second end.
func (w *Wire) B() *End { return &w.b }

// Close ends the goroutines of the wire. Close the stacks at its ends first.
func (w *Wire) Close() {
	w.a.out.close()
	w.b.out.close()
}

// Impair sets what happens to the packets that leave this end.
func (e *End) Impair(imp Impairment) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.imp = imp
}

// Send puts a raw packet on the wire as if this end's stack had sent it.
func (e *End) Send(pkt []byte) {
	e.mu.Lock()
	imp := e.imp
	lost, dup := e.rng.Float64() < imp.Loss, e.rng.Float64() < imp.Dup
	if e.rng.Float64() < imp.Reorder {
		imp.Delay += reorderBy
	}
	e.mu.Unlock()
	if lost {
		return
	}
	if !e.out.push(pkt, imp.Delay) {
		e.end.dropped.Add(1)
	}
	if dup {
		e.out.push(append([]byte(nil), pkt...), imp.Delay)
	}
}

// carry delivers a packet at the other end.
func (e *End) carry(pkt []byte) {
	e.mu.Lock()
	filter := e.imp.Filter
	e.mu.Unlock()
	if filter != nil {
		pkt = filter(pkt)
	}
	if len(pkt) > 0 {
		e.peer.receive(pkt)
	}
}

// Handle passes what arrives at this end to fn instead of a stack, so that a model of the steering can be there. Call
// it before there is traffic.
func (e *End) Handle(fn PacketFunc) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.handler = fn
}

func (e *End) receive(pkt []byte) {
	e.mu.Lock()
	fn := e.handler
	e.mu.Unlock()
	if fn != nil {
		fn(pkt)
		return
	}
	e.end.deliver(pkt)
}

// Endpoint implements link.Link.
func (e *End) Endpoint() link.Endpoint { return &e.end }

// WritePackets implements stack.LinkWriter.
func (l *endpoint) WritePackets(pkts stack.PacketBufferList) (int, tcpip.Error) {
	for _, p := range pkts.AsSlice() {
		l.send(link.Flatten(p))
	}
	return pkts.Len(), nil
}

// Stop implements link.Endpoint. Wire.Close ends the wire.
func (*endpoint) Stop() {}
