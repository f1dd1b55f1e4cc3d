package netstack

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/smcgw/smcgw/netstack/internal/segment"
	"github.com/smcgw/smcgw/netstack/link"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/stack"

	"github.com/smcgw/smcgw/packet"
)

// fitting makes the packets of one flow as small as its path requires. gVisor does not know: its segments are cut on
// their way to the link, so that packets can grow again, which gVisor's own never do.
type fitting struct {
	limited atomic.Bool // segment.PathSize.Limited, readable without the lock

	mu    sync.Mutex // guards everything below
	path  segment.PathSize
	ahead time.Duration // offset of the clock; set only by tests
}

// send returns the sizes in which the segment g may leave.
func (x *fitting) send(g segment.Outgoing) segment.Cut {
	x.mu.Lock()
	defer x.mu.Unlock()
	g.Now += x.ahead
	c := x.path.Send(g)
	x.limited.Store(x.path.Limited())
	return c
}

// acked records an acknowledgement by the peer.
func (x *fitting) acked(ack uint32, clock tcpip.Clock) {
	if !x.limited.Load() {
		return
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.path.Acked(ack, sinceStart(clock)+x.ahead)
	x.limited.Store(x.path.Limited())
}

func sinceStart(clock tcpip.Clock) time.Duration {
	return clock.NowMonotonic().Sub(tcpip.MonotonicTime{})
}

// fit cuts what outbound decided to send for p, a segment with wire headers ip and t. Everything before sent had left
// before. It takes and returns the results of outbound.
func (m *shim) fit(f *flow, x *fitting, p *stack.PacketBuffer, ip []byte, t packet.TCP, sent uint32, repl []*stack.PacketBuffer, keep bool) ([]*stack.PacketBuffer, bool) {
	n := p.Data().Size()
	if n == 0 || !keep && len(repl) == 0 {
		return repl, keep
	}
	g := segment.Outgoing{Seq: t.Seq(), End: t.Seq() + uint32(n), Sent: sent}
	if g.Fresh() && !x.limited.Load() {
		return repl, keep
	}
	g.Una, g.Now = f.una.Load(), sinceStart(m.s.clock)
	g.Headers, g.Whole = len(ip)+len(t), len(ip)+int(f.segMax.Load())
	if link.Offloaded(p) { // gVisor reserves room for options that are rarely present
		g.Whole = min(g.Whole, g.Headers+int(p.GSOOptions.MSS))
	}
	g.Size = g.Headers + n
	c := x.send(g)
	if c.Hole {
		m.s.count.blackHoles.Add(1)
	}
	if keep {
		return cutPacket(p, ip, t, c)
	}
	return cutAll(repl, c), false
}

// cutAll cuts packets. It consumes the references to pkts, and the caller owns those to the result.
func cutAll(pkts []*stack.PacketBuffer, c segment.Cut) (out []*stack.PacketBuffer) {
	for _, q := range pkts {
		pieces, keep := cutPacket(q, q.NetworkHeader().Slice(), q.TransportHeader().Slice(), c)
		if keep {
			out = append(out, q)
		} else {
			q.DecRef()
			out = append(out, pieces...)
		}
		c.First = c.Rest
	}
	return out
}

// cutPacket returns the pieces of p, packets of at most the sizes of c, or keeps p if it is small enough or if the
// kernel will segment it to that size.
func cutPacket(p *stack.PacketBuffer, ip []byte, t packet.TCP, c segment.Cut) (pieces []*stack.PacketBuffer, keep bool) {
	n, headers := p.Data().Size(), len(ip)+len(t)
	switch {
	case headers+n <= c.First:
		return nil, true
	case link.Offloaded(p) && c.First == c.Rest:
		p.GSOOptions.MSS = min(p.GSOOptions.MSS, uint16(c.Rest-headers))
		return nil, true
	}
	payload := p.Data().AsRange().ToSlice()
	for off, size := 0, c.First-headers; off < n; off, size = off+size, c.Rest-headers {
		pieces = append(pieces, piece(ip, t, payload, off, min(off+size, n)))
	}
	return pieces, false
}

// piece returns the packet with the bytes [off, end) of a segment's payload.
func piece(ip []byte, t packet.TCP, payload []byte, off, end int) *stack.PacketBuffer {
	var head [packet.TCPMinLen]byte
	copy(head[:], t)
	packet.TCP(head[:]).SetSeq(t.Seq() + uint32(off))
	if end < len(payload) {
		head[13] &^= packet.FlagFIN | packet.FlagPSH
	}
	return buildTCP(ip, head[:], t[packet.TCPMinLen:], payload[off:end])
}

// sequenceEnd returns the sequence number after an outbound segment.
func sequenceEnd(p *stack.PacketBuffer, t packet.TCP) uint32 {
	end := t.Seq() + uint32(p.Data().Size())
	if t.Flags()&(packet.FlagSYN|packet.FlagFIN) != 0 {
		end++
	}
	return end
}
