package link

import (
	"sync"
	"sync/atomic"

	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
)

// Link is a source and sink of raw IP packets. One stack uses it, and stops it when it closes.
type Link interface {
	// Endpoint returns the link as its stack sees it.
	Endpoint() Endpoint
}

// Endpoint is a link as gVisor and the shim see it.
type Endpoint interface {
	stack.LinkEndpoint
	stack.GSOEndpoint
	// Detach ends the intake, and returns when no packet is being delivered any more. Call it before ending gVisor's
	// stack, which detaches links under a lock that deliveries take.
	Detach()
	// Stop ends the rest, after what was written has left.
	Stop()
	// Drops counts packets that the link did not accept, Refused those that the kernel calls malformed. Each of the
	// latter is a defect, and is refused again when it is retransmitted.
	Drops() uint64
	Refused() uint64
}

// bareLink is a link endpoint without link headers, for embedding.
type bareLink struct {
	mtu     uint32
	dropped atomic.Uint64
	refused atomic.Uint64

	mu sync.RWMutex // guards everything below; read-held while a packet is delivered
	d  stack.NetworkDispatcher
}

func (l *bareLink) MTU() uint32                                  { return l.mtu }
func (l *bareLink) SetMTU(uint32)                                {}
func (l *bareLink) MaxHeaderLength() uint16                      { return 0 }
func (l *bareLink) LinkAddress() tcpip.LinkAddress               { return "" }
func (l *bareLink) SetLinkAddress(tcpip.LinkAddress)             {}
func (l *bareLink) Capabilities() stack.LinkEndpointCapabilities { return 0 }
func (l *bareLink) ARPHardwareType() header.ARPHardwareType      { return header.ARPHardwareNone }
func (l *bareLink) AddHeader(*stack.PacketBuffer)                {}
func (l *bareLink) ParseHeader(*stack.PacketBuffer) bool         { return true }
func (l *bareLink) Close()                                       {}
func (l *bareLink) SetOnCloseAction(func())                      {}
func (l *bareLink) Wait()                                        {}
func (l *bareLink) GSOMaxSize() uint32                           { return 0 }
func (l *bareLink) SupportedGSO() stack.SupportedGSO             { return stack.GSONotSupported }
func (l *bareLink) Drops() uint64                                { return l.dropped.Load() }
func (l *bareLink) Refused() uint64                              { return l.refused.Load() }
func (l *bareLink) Detach()                                      { l.Attach(nil) }
func (l *bareLink) Stop()                                        {}

func (l *bareLink) IsAttached() bool {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.d != nil
}

// Attach sets the dispatcher. Attach(nil) returns when no packet is being delivered any more.
func (l *bareLink) Attach(d stack.NetworkDispatcher) {
	l.mu.Lock()
	l.d = d
	l.mu.Unlock()
}

// deliver passes an inbound packet up. The caller keeps its reference.
func (l *bareLink) deliver(proto tcpip.NetworkProtocolNumber, p *stack.PacketBuffer) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	if l.d != nil {
		l.d.DeliverNetworkPacket(proto, p)
	}
}

// Buffer returns an inbound packet buffer with a copy of raw.
func Buffer(raw []byte) *stack.PacketBuffer {
	return stack.NewPacketBuffer(stack.PacketBufferOptions{Payload: buffer.MakeWithData(raw)})
}

// overhead is the memory that gVisor uses for an inbound packet and its segment, besides the bytes.
const overhead = 1 << 10

// Held returns the memory that an inbound packet pins: that of its buffers, however few bytes are in them.
func Held(p *stack.PacketBuffer) (n int64) {
	views, _ := p.AsViewList()
	for v := views.Front(); v != nil; v = v.Next() {
		n += int64(v.Capacity())
	}
	return n + overhead
}

// Protocol returns the network protocol of a raw IP packet.
func Protocol(ip []byte) tcpip.NetworkProtocolNumber {
	if ip[0]>>4 == 6 {
		return header.IPv6ProtocolNumber
	}
	return header.IPv4ProtocolNumber
}

// Offloaded reports whether the checksum field of p holds only the sum of the pseudo header.
func Offloaded(p *stack.PacketBuffer) bool {
	return p.GSOOptions.Type != stack.GSONone && p.GSOOptions.NeedsCsum
}

// Flatten copies an outbound packet into one slice.
func Flatten(p *stack.PacketBuffer) []byte {
	b := make([]byte, 0, p.Size())
	for _, s := range p.AsSlices() {
		b = append(b, s...)
	}
	return b
}
