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

// ledger is where both directions of a carried flow stand, and what the peer may
// say next: the protocol of records without I/O (docs/PROTOCOL.md "Records",
// "Demotion", "Teardown"). Each fact is here and nowhere else, whatever carries the
// bytes. Offsets count the bytes of a direction from 0. While a queue pair carries,
// they are its endpoint's, and the ledger has those that records name.
//
// A flow that began on the relay begins in relays. One with a queue pair begins in
// carried, and has left it when demoted is set: the peer may not know of it yet. What
// it sends of its own direction waits for HAVE in relays, which says from where on it
// is sent again.
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
	tx      txPhase
	sent    uint64 // by DATA, or consumed by the peer
	read    uint64 // taken from the application
	allowed uint64 // DATA may reach
	freed   uint64 // the peer has proved before that it consumed these

	// The peer's direction: reported ≤ consumed ≤ received.
	rx       rxPhase
	received uint64
	consumed uint64 // by the application
	reported uint64 // consumed as of the last HAVE
	final    uint64 // the direction is so long, if that is known

	legDone bool // the application's kernel has all of both directions
	done    bool // DEMOTE-DONE was read
}

// peerPhase is what the peer may send.
type peerPhase uint8

const (
	peerRelays peerPhase = iota
	peerCarried
	peerLeft
)

// txPhase is where the own direction stands.
//
//	open ── END sent ──► ended ── HAVE{final} read, or wire leg lost in order ──► taken
type txPhase uint8

const (
	txOpen txPhase = iota
	txEnded
	txTaken
)

// rxPhase is where the peer's direction stands.
//
//	open ── END read ──► known ── all bytes and the end given ──► shut ── HAVE{final} sent ──► told
//	                                                               ▲                          │
//	                                                               └──── queue pair left ─────┘
type rxPhase uint8

const (
	rxOpen rxPhase = iota
	rxKnown
	rxShut
	rxTold
)

// newLedger is that of a flow that begins on the relay.
func newLedger() ledger { return ledger{allowed: relayWindow} }

// newCarriedLedger is that of a flow that begins on a queue pair.
func newCarriedLedger() ledger { return ledger{peer: peerCarried} }

// leave takes the flow from its queue pair, which has read and consumed so many bytes
// of both directions, and of which the peer has proved that it consumed freed ones.
// What the application has taken by then is said again.
func (l *ledger) leave(read, freed, consumed uint64) {
	l.demoted, l.read, l.freed = true, read, freed
	l.received, l.consumed, l.reported = consumed, consumed, consumed
	l.rx = min(l.rx, rxShut)
}

// carried reports whether a queue pair carries the flow.
func (l *ledger) carried() bool { return l.peer != peerRelays && !l.demoted }

// end ends the own direction after so many bytes: END says so.
func (l *ledger) end(final uint64) { l.tx, l.read = max(l.tx, txEnded), final }

// shut: the application has got all of the peer's direction, and its end.
func (l *ledger) shut() { l.rx, l.received = max(l.rx, rxShut), l.final }

// record acts on one record. Another reason than none ends the flow.
func (l *ledger) record(rec negotiate.Record) negotiate.Reason {
	ok := true
	switch rec.Type {
	case negotiate.RecordData:
		ok = l.data(rec)
	case negotiate.RecordEnd:
		ok = l.peerEnd(rec.Offset)
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
	if l.peer != peerRelays || rec.Offset != l.received || end > l.reported+relayWindow || l.rx != rxOpen && end > l.final {
		return false
	}
	l.received = end
	return true
}

func (l *ledger) peerEnd(final uint64) bool {
	if l.rx != rxOpen && l.final != final || final < l.received {
		return false
	}
	l.rx, l.final = max(l.rx, rxKnown), final
	return true
}

// have is what the peer's application has taken. Of a peer that has just left
// its queue pair it says where the own direction goes on; before that it can only
// be the end of it.
func (l *ledger) have(rec negotiate.Record) negotiate.Reason {
	switch {
	case l.carried() && l.tx == txOpen: // of bytes that only the queue pair counts
		return negotiate.ReasonNone
	case rec.Offset > l.read, l.peer == peerRelays && rec.Offset > l.sent, l.tx == txTaken && rec.Offset < l.read:
		return negotiate.ReasonProtocolError
	case l.peer == peerLeft && rec.Offset < l.freed:
		return negotiate.ReasonLostBytes
	case l.peer == peerLeft:
		l.peer, l.sent = peerRelays, rec.Offset
	}
	if l.tx == txEnded && rec.Offset == l.read && rec.Window == 0 { // with a window it may have been sent before END came
		l.tx = txTaken
	}
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

// delivered: the application has every byte that the peer sent.
func (l *ledger) delivered() bool { return l.rx != rxOpen && l.consumed == l.final }

// consume counts bytes that the application has taken.
func (l *ledger) consume(n int) { l.consumed += uint64(n) }

// due: enough was consumed since the last HAVE to be worth another one.
func (l *ledger) due() bool { return l.consumed-l.reported >= relayUpdate }

// report returns what HAVE says. The window begins there.
func (l *ledger) report() (consumed uint64) {
	l.reported = l.consumed
	return l.consumed
}

// tell reports whether HAVE{final} is to be sent now, and counts it as sent. While a
// queue pair carries, it goes behind the own END: the peer can do nothing with it
// before that, and a program that answers the end of a connection with its own makes
// both one segment. A client that resets the wire leg now has no need to say it.
func (l *ledger) tell(client bool) bool {
	if l.rx != rxShut || l.carried() && (l.tx == txOpen || client && l.tx == txTaken && l.legDone) {
		return false
	}
	l.rx = rxTold
	return true
}

// lost is the end of the wire leg: after END from both sides and with all bytes
// here it is the client's goodbye, otherwise an abort.
func (l *ledger) lost() (orderly bool) {
	if l.tx == txOpen || l.rx == rxOpen || l.received != l.final {
		return false
	}
	l.tx = txTaken
	return true
}

// outcome is what becomes of a flow whose records have all been taken.
type outcome uint8

const (
	goesOn  outcome = iota
	asks            // the client's reset, which says that it has everything, may be lost
	lingers         // the client resets the wire leg
	isOver          // both directions have ended, and both applications have everything
)

// outcome is told which side this is, and whether the wire leg has ended.
func (l *ledger) outcome(client, gone bool) outcome {
	over := l.tx == txTaken && l.rx >= rxShut && l.legDone
	switch {
	case over && (client || gone):
		return isOver
	case over:
		return lingers
	case !client && l.carried() && l.tx != txOpen && l.rx != rxOpen && l.legDone:
		return asks
	default:
		return goesOn
	}
}
