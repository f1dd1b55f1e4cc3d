package gateway

import "github.com/smcgw/smcgw/negotiate"

const (
	// relayWindow is how many bytes a direction of the relay carrier may be
	// ahead of the application that consumes them: the first window of both
	// sides of a connection that began there (docs/PROTOCOL.md "Records").
	relayWindow = 256 << 10
	// relayUpdate is how much must be consumed before HAVE says so.
	relayUpdate = relayWindow / 4
)

// ledger is where both directions of a flow on the relay stand, and what the
// peer may say next: the protocol of DATA, END, HAVE and demotion without I/O
// (docs/PROTOCOL.md "Records", "Demotion"). Offsets count the bytes of a
// direction from 0, whatever carried them.
//
// A flow that began on the relay begins in relays. One that left its queue pair
// begins in carried: the peer may not know of it yet. What it sends of its own
// direction waits for HAVE in relays, which says from where on it is sent again.
//
//	carried ── DEMOTE ──► left ── HAVE{consumed, window} ──► relays
//	 END, HAVE{final}      END                                DATA, END, HAVE, one DEMOTE-DONE
//
// Anything else is a violation. It is not safe for concurrent use.
type ledger struct {
	peer    peerPhase
	demoted bool // the flow has left a queue pair

	// The own direction: sent ≤ read. Bytes between them are the tail: they were
	// sent by the queue pair and have to be sent again.
	sent    uint64 // by DATA, or consumed by the peer
	read    uint64 // taken from the application
	allowed uint64 // DATA may reach
	freed   uint64 // the peer has proved before that it consumed these
	ended   bool   // the direction is read bytes long: END says so
	taken   bool   // the peer's application has all of them

	// The peer's direction: reported ≤ consumed ≤ received.
	received uint64
	consumed uint64 // by the application
	reported uint64 // consumed as of the last HAVE
	endKnown bool   // the direction is final bytes long
	final    uint64
	told     bool // HAVE{final} was sent

	done bool // DEMOTE-DONE was read
}

// peerPhase is what the peer may send.
type peerPhase uint8

const (
	peerRelays peerPhase = iota
	peerCarried
	peerLeft
)

// newLedger is that of a flow that begins on the relay.
func newLedger() ledger { return ledger{allowed: relayWindow} }

// record acts on one record. Another reason than none ends the flow.
func (l *ledger) record(rec negotiate.Record) negotiate.Reason {
	ok := true
	switch rec.Type {
	case negotiate.RecordData:
		ok = l.data(rec)
	case negotiate.RecordEnd:
		ok = l.end(rec.Offset)
	case negotiate.RecordHave:
		return l.have(rec)
	case negotiate.RecordDemote:
		ok = l.peer == peerCarried
		l.peer = peerLeft
	case negotiate.RecordDemoteDone:
		ok = l.demoted && l.peer == peerRelays && !l.done
		l.done = true
	case negotiate.RecordAbort:
		return rec.Reason
	case negotiate.RecordKeepalive:
	}
	if !ok {
		return negotiate.ReasonProtocolError
	}
	return negotiate.ReasonNone
}

// data takes payload; beyond the window, out of order or too early is a violation.
func (l *ledger) data(rec negotiate.Record) bool {
	end := rec.Offset + uint64(len(rec.Payload))
	if l.peer != peerRelays || rec.Offset != l.received || end > l.reported+relayWindow || l.endKnown && end > l.final {
		return false
	}
	l.received = end
	return true
}

func (l *ledger) end(final uint64) bool {
	if l.endKnown && l.final != final || final < l.received {
		return false
	}
	l.endKnown, l.final = true, final
	return true
}

// have is what the peer's application has taken. Of a peer that has just left
// its queue pair it says where the own direction goes on; before that it can only
// be the end of it.
func (l *ledger) have(rec negotiate.Record) negotiate.Reason {
	switch {
	case rec.Offset > l.read, l.peer == peerRelays && rec.Offset > l.sent, l.taken && rec.Offset < l.read:
		return negotiate.ReasonProtocolError
	case l.peer == peerLeft && rec.Offset < l.freed:
		return negotiate.ReasonLostBytes
	case l.peer == peerLeft:
		l.peer, l.sent = peerRelays, rec.Offset
	}
	l.taken = l.taken || l.ended && rec.Offset == l.read
	if l.peer == peerRelays {
		l.allowed = max(l.allowed, rec.Offset+rec.Window)
	}
	return negotiate.ReasonNone
}

// room returns how many bytes of DATA the peer takes now.
func (l *ledger) room() uint64 {
	if l.peer != peerRelays {
		return 0
	}
	return l.allowed - l.sent
}

// tail reports whether what is sent next was sent before.
func (l *ledger) tail() bool { return l.sent < l.read }

// left reports whether the peer needs nothing of the queue pair any more, nor the
// own side: the peer has said from where on it needs bytes, and it has those of
// the tail.
func (l *ledger) left() bool { return l.peer == peerRelays && !l.tail() }

// send counts n bytes of DATA, at most room and the rest of the tail, and returns
// their offset.
func (l *ledger) send(n int) (offset uint64) {
	offset = l.sent
	l.sent += uint64(n)
	l.read = max(l.read, l.sent)
	return offset
}

// delivered: the application has everything the peer sent.
func (l *ledger) delivered() bool { return l.endKnown && l.consumed == l.final }

// consume counts bytes that the application has taken.
func (l *ledger) consume(n int) { l.consumed += uint64(n) }

// due: enough was consumed since the last HAVE to be worth another one.
func (l *ledger) due() bool { return l.consumed-l.reported >= relayUpdate }

// report returns what HAVE says. The window begins there.
func (l *ledger) report() (consumed uint64) {
	l.reported = l.consumed
	return l.consumed
}

// settled: both directions are over, as far as this side can know. To a wire leg
// that is gone nothing has to be said.
func (l *ledger) settled(gone bool) bool {
	return l.taken && l.delivered() && (l.told || gone)
}

// lost is the end of the wire leg: after END from both sides and with all bytes
// here it is the client's goodbye, otherwise an abort.
func (l *ledger) lost() (orderly bool) {
	orderly = l.ended && l.endKnown && l.received == l.final
	l.taken = l.taken || orderly
	return orderly
}
