package socket

import "sync/atomic"

// PacketStats is a snapshot of a datagram socket.
type PacketStats struct {
	// SentUD, SentUDP and SentPlain count datagrams sent by queue pair, over UDP after a header, and over UDP without a
	// header.
	SentUD, SentUDP, SentPlain uint64
	// ReceivedUD, ReceivedUDP and ReceivedPlain count datagrams put into the receive buffer, likewise.
	ReceivedUD, ReceivedUDP, ReceivedPlain uint64
	// Answers counts answers to peers that asked for our queue pair. Probes and Echoes count messages sent to find out
	// whether queue pairs reach each other.
	Answers, Probes, Echoes uint64
	// Overflow counts datagrams dropped because the receive buffer was full, SocketOverflow those that the kernel reported
	// to have dropped before, Malformed those that no rsocket sends, and Foreign those by queue pair whose source is not
	// the one in the network header.
	Overflow, SocketOverflow, Malformed, Foreign uint64
	// SendErrors counts datagrams that a device accepted but did not send, CtrlErrors answers that could not be sent.
	SendErrors, CtrlErrors uint64
	// Destinations is the number of peers known now.
	Destinations int
	// Resolved counts queue pairs learned, Proven those that an echo proved, Refreshed questions to silent peers, Lost
	// those of them without an answer, Unresolvable queue pairs for which no address handle could be made, and Evicted
	// peers forgotten because there were too many.
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
