package soft

import (
	"fmt"
	"time"

	"github.com/smcgw/smcgw/verbs"
	"github.com/smcgw/smcgw/verbs/soft/wire"
)

// Guard holds what the two ends of a reliable connection agree on so that a third host, which can send with the address
// of either, has more to guess than the standard requires. Without keys for both sides, the checks that need no keys
// remain; see [Protect].
type Guard struct {
	// Own is the partition key of packets to the queue pair, Peer that of packets from it; see [RandomPartition].
	Own, Peer uint16
}

const (
	// defaultPartition is the partition of which every device is a full member.
	defaultPartition = 0xffff
	wholeMember      = 0x8000
	// firstPackets is how far ahead of the expected packet the first packet to arrive may be: the number of carrier proofs
	// that a peer sends (docs/PROTOCOL.md).
	firstPackets = 4
)

// RandomPartition returns a partition key that a peer cannot guess.
func RandomPartition() uint16 {
	for {
		if k := uint16(random32()) | wholeMember; ValidPartition(k) {
			return k
		}
	}
}

// ValidPartition reports whether two ends may agree on a partition key: that of a full member of a partition that
// exists and is not the default one.
func ValidPartition(k uint16) bool { return k > wholeMember && k < defaultPartition }

// RandomPSN returns a first PSN that a peer cannot guess.
func RandomPSN() uint32 { return random32() >> 8 }

// Protect makes a queue pair in INIT accept less than the standard requires. Packets that fail are dropped and counted,
// and their sender gets no answer.
//
//   - Packets must have the partition key Own; packets sent have Peer. Answers carry the first PSN of their sender as
//     their MSN, and CNPs as their PSN. Without keys CNPs are neither accepted nor sent.
//   - All packets of the peer must come from the UDP source port of its first packet.
//   - A PSN must be that of a packet that can be in flight: within the largest window, or, before the first packet,
//     within four packets of the expected one.
//   - It gives up on a path that loses too much, see futile.
//   - Only WRITEs are served. One that asks for what was not granted is dropped but does not end the queue pair. If the
//     peer did send it, the peer gets no answer and gives up. See [Refused].
//
// Protect returns [verbs.ErrState] for a queue pair that is not RC and in INIT, and [verbs.ErrInvalid] for keys that
// [ValidPartition] refuses. Only the queue pair's owner may call it.
func Protect(pair verbs.QP, g Guard) error {
	q, ok := pair.(*qp)
	switch {
	case !ok || q.kind != verbs.QPTRC || q.state != verbs.QPSInit:
		return fmt.Errorf("guard a queue pair: %w", verbs.ErrState)
	case g.Own == 0 || g.Peer == 0:
		g = Guard{}
	case !ValidPartition(g.Own) || !ValidPartition(g.Peer):
		return fmt.Errorf("partition keys %#x and %#x: %w", g.Own, g.Peer, verbs.ErrInvalid)
	}
	q.guard = guard{on: true, own: g.Own, peer: g.Peer}
	return nil
}

// Refused reports whether the last packet with the PSN that a protected queue pair expects was refused. A connected
// peer repeats that packet until it gives up. Only the loop of the queue pair's vector may call it.
func Refused(pair verbs.QP) bool {
	q, ok := pair.(*qp)
	return ok && q.guard.refused
}

// Path returns the round trip time of a queue pair, 0 before it was measured, and how many of its packets were
// retransmitted. Only the loop of its vector may call it.
func Path(pair verbs.QP) (rtt time.Duration, again uint64, ok bool) {
	q, ok := pair.(*qp)
	if !ok {
		return 0, 0, false
	}
	return time.Duration(q.req.rtt.srtt), q.req.again, true
}

// guard is the protection of a queue pair; the zero value follows the standard.
type guard struct {
	on        bool
	own, peer uint16 // partition keys; 0: not agreed on
	port      uint16 // UDP source port of the peer, 0: not known yet
	refused   bool   // see Refused
}

// member reports whether packets with a partition key are for the queue pair.
func (g *guard) member(k uint16) bool {
	if g.own != 0 {
		return k == g.own
	}
	return k&^wholeMember == defaultPartition&^wholeMember
}

// partition returns the partition key of packets sent.
func (g *guard) partition() uint16 {
	if g.peer != 0 {
		return g.peer
	}
	return defaultPartition
}

// comesFrom reports whether the peer may send from a UDP port.
func (g *guard) comesFrom(port uint16) bool { return g.port == 0 || port == g.port }

// learn records the source port of a packet that is very unlikely to be forged.
func (g *guard) learn(port uint16) {
	if g.on {
		g.port = port
	}
}

// sign returns the value to send in place of a message sequence number, or as the PSN of a CNP.
func (q *qp) sign(n uint32) uint32 {
	if q.guard.own != 0 {
		return q.attr.SQPSN
	}
	return n
}

// plausible reports whether a packet can be in flight. Answers must also refer to packets in flight: see response.
func (q *qp) plausible(h *wire.Header) bool {
	g, t := &q.guard, h.Opcode.Traits()
	signed := g.own != 0
	switch {
	case !g.on:
		return true
	case h.Opcode == wire.CNP:
		return signed && h.PSN == q.attr.RQPSN
	case t&wire.Response != 0:
		return h.Opcode == wire.RCAcknowledge && (!signed || h.MSN == q.attr.RQPSN)
	}
	ahead, window := wire.PSNDiff(h.PSN, q.resp.psn), int32(maxWindow/q.mtu)
	if g.port == 0 {
		return ahead >= 0 && ahead < firstPackets
	}
	return ahead >= -window && ahead < window
}

// violates reports whether the expected packet asks for what was not granted.
func (q *qp) violates(h *wire.Header, payload []byte) bool {
	t := h.Opcode.Traits()
	if t&wire.Write == 0 || !q.fits(t, len(payload)) || !q.serves(t) {
		return true
	}
	return q.target(h, t, len(payload)) != wire.ACK
}

// suspect drops a packet that fits in everything but what it asks for.
func (q *qp) suspect() {
	q.guard.refused = true
	q.vec.dev.count.dropRefused.Add(1)
}
