package link

import (
	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
)

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
