package socket

import "sync/atomic"

// PacketStats is a snapshot of a datagram socket.
type PacketStats struct {
	// SentUD, SentUDP and SentPlain count datagrams by the way they went: by queue pair, over UDP after a header,
	// over UDP as they are.
	SentUD, SentUDP, SentPlain uint64
	// ReceivedUD, ReceivedUDP and ReceivedPlain count likewise what was put into the receive buffer.
	ReceivedUD, ReceivedUDP, ReceivedPlain uint64
	// Answers counts answers to peers that asked for our queue pair, Probes and Echoes what was sent to find out
	// whether queue pairs reach each other.
	Answers, Probes, Echoes uint64
	// Overflow counts datagrams that were dropped because the receive buffer was full, SocketOverflow those that the
	// kernel dropped before we could look at them, as far as it has told, Malformed those that no rsocket sends,
	// Foreign those by queue pair whose source is not the one that the network says.
	Overflow, SocketOverflow, Malformed, Foreign uint64
	// SendErrors counts datagrams that a device took and did not send, CtrlErrors answers that could not be sent.
	SendErrors, CtrlErrors uint64
	// Destinations is the number of peers known now.
	Destinations int
	// Resolved counts queue pairs learned, Proven those found to work by an echo, Refreshed questions to peers that
	// were not heard of, Lost those of them that stayed without answer, Unresolvable queue pairs that the device has no
	// way to, Evicted peers forgotten because there were too many.
	Resolved, Proven, Refreshed, Lost, Unresolvable, Evicted uint64
}

type packetCounters struct {
	sentUD, sentUDP, sentPlain             atomic.Uint64
	receivedUD, receivedUDP, receivedPlain atomic.Uint64
	answers, probes, echoes                atomic.Uint64
	overflow, malformed, foreign           atomic.Uint64
	sendErrors, ctrlErrors                 atomic.Uint64
}

// Stats returns a snapshot.
func (c *PacketConn) Stats() PacketStats {
	n := &c.counters
	c.mu.Lock()
	known, t := c.table.Len(), c.table.Stats
	c.mu.Unlock()
	return PacketStats{
		SentUD: n.sentUD.Load(), SentUDP: n.sentUDP.Load(), SentPlain: n.sentPlain.Load(),
		ReceivedUD: n.receivedUD.Load(), ReceivedUDP: n.receivedUDP.Load(), ReceivedPlain: n.receivedPlain.Load(),
		Answers: n.answers.Load(), Probes: n.probes.Load(), Echoes: n.echoes.Load(),
		Overflow: n.overflow.Load(), SocketOverflow: c.socket.Dropped(), Malformed: n.malformed.Load(), Foreign: n.foreign.Load(),
		SendErrors: n.sendErrors.Load(), CtrlErrors: n.ctrlErrors.Load(),
		Destinations: known,
		Resolved:     t.Resolved, Proven: t.Proven, Refreshed: t.Refreshed, Lost: t.Lost,
		Unresolvable: t.Unresolvable, Evicted: t.Evicted,
	}
}
