package wire

import (
	"sync"
	"sync/atomic"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/link/channel"
	"gvisor.dev/gvisor/pkg/tcpip/stack"

	"github.com/smcgw/smcgw/netstack/link"
)

// bare is what the ends of wires and pipes have in common: a link endpoint that stores no packets.
type bare struct {
	*channel.Endpoint
	mu      sync.RWMutex // read-held while a packet is delivered
	dropped atomic.Uint64
}

func (l *bare) init(mtu int) {
	l.Endpoint = channel.New(0, uint32(mtu), "")
	l.SupportedGSOKind = stack.GSONotSupported
}

func (l *bare) Drops() uint64 { return l.dropped.Load() }

func (*bare) Refused() uint64 { return 0 }

func (l *bare) Detach() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.Attach(nil)
}

// deliver passes up a copy of a raw IP packet.
func (l *bare) deliver(raw []byte) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	if len(raw) == 0 || !l.IsAttached() {
		return
	}
	p := link.Buffer(raw)
	defer p.DecRef()
	l.InjectInbound(link.Protocol(raw), p)
}

// PacketFunc receives a raw IP packet and owns it.
type PacketFunc func(pkt []byte)

// Pipe connects a stack to functions, so that a model of the steering can be between several stacks.
type Pipe struct{ end packetEnd }

type packetEnd struct {
	bare
	out *pump
}

// NewPipe returns a link that passes outbound packets to out, in order, on one goroutine of the link. out may call
// Inject of any link. It must not block for long, and must not close the link's own Stack.
func NewPipe(mtu int, out PacketFunc) *Pipe {
	l := &Pipe{end: packetEnd{out: newPump(out)}}
	l.end.init(mtu)
	return l
}

// Inject delivers a copy of an inbound raw IP packet, with complete checksums, on the caller's goroutine. Before the
// link is used, and after its Stack has been closed, it drops the packet.
func (l *Pipe) Inject(pkt []byte) { l.end.deliver(pkt) }

// Endpoint implements link.Link.
func (l *Pipe) Endpoint() link.Endpoint { return &l.end }

// WritePackets implements stack.LinkWriter.
func (l *packetEnd) WritePackets(pkts stack.PacketBufferList) (int, tcpip.Error) {
	for _, p := range pkts.AsSlice() {
		if !l.out.push(link.Flatten(p), 0) {
			l.dropped.Add(1)
		}
	}
	return pkts.Len(), nil
}

// Stop implements link.Endpoint.
func (l *packetEnd) Stop() { l.out.close() }
