package flow

import "github.com/smcgw/smcgw/negotiate"

const (
	// Window is how many bytes a direction of the relay carrier may be
	// ahead of the application that consumes them: the first window of both
	// sides of a connection that began there (docs/PROTOCOL.md "Records").
	Window = 256 << 10
	// windowUpdate is how much must be consumed before HAVE says so.
	windowUpdate = Window / 4
)

// Ledger is where both directions of a carried flow stand, and what the peer may
// say next: the protocol of records without I/O (docs/PROTOCOL.md "Records",
// "Demotion", "Teardown"). Each fact is here and nowhere else, whatever carries the
// bytes. Offsets count the bytes of a direction from 0. While a queue pair carries,
// they are its endpoint's, and the Ledger has those that records name.
//
// A flow that began on the relay begins in relays. One with a queue pair begins in
// Carried, and has left it when demoted is set: the peer may not know of it yet. What
// it sends of its own direction waits for HAVE in relays, which says from where on it
// is sent again.
//
//	carried ── DEMOTE ──► left ── HAVE{consumed, window} ──► relays
//	 END, HAVE{final}      END                                DATA, END, HAVE, one DEMOTE-DONE
//
// Anything else is a violation. It is not safe for concurrent use.
type Ledger struct {
	Peer    PeerPhase
	Demoted bool // the flow has left a queue pair

	// The own direction: Sent ≤ Read. Bytes between them are the tail: they were
	// sent by the queue pair and have to be sent again.
	Tx      TxPhase
	Sent    uint64 // by DATA, or consumed by the peer
	Read    uint64 // taken from the application
	Allowed uint64 // DATA may reach
	freed   uint64 // the peer has proved before that it consumed these

	// The peer's direction: Reported ≤ Consumed ≤ Received.
	Rx       RxPhase
	Received uint64
	Consumed uint64 // by the application
	Reported uint64 // consumed as of the last HAVE
	Final    uint64 // the direction is so long, if that is known

	LegDone bool // the application's kernel has all of both directions
	done    bool // DEMOTE-DONE was read
}

// PeerPhase is what the peer may send.
type PeerPhase uint8

// What the peer may send.
const (
	PeerRelays  PeerPhase = iota // DATA, END, HAVE
	PeerCarried                  // what goes beside a link: END, HAVE{final}
	PeerLeft                     // END, and HAVE, which says where the own direction goes on
)

// TxPhase is where the own direction stands.
//
//	open ── END sent ──► ended ── HAVE{final} read, or wire leg lost in order ──► taken
type TxPhase uint8

// Where the own direction stands.
const (
	TxOpen  TxPhase = iota
	TxEnded         // the application has ended it
	TxTaken         // the peer's application has all of it, and its end
)

// RxPhase is where the peer's direction stands.
//
//	open ── END read ──► known ── all bytes and the end given ──► shut ── HAVE{final} sent ──► told
//	                                                               ▲                          │
//	                                                               └──── queue pair left ─────┘
type RxPhase uint8

// Where the peer's direction stands.
const (
	RxOpen  RxPhase = iota
	RxKnown         // its end is known
	RxShut          // the application has all of it, and its end
	RxTold          // the peer was told so
)

// newLedger is that of a flow that begins on the relay.
func newLedger() Ledger { return Ledger{Allowed: Window} }

// newCarriedLedger is that of a flow that begins on a queue pair.
func newCarriedLedger() Ledger { return Ledger{Peer: PeerCarried} }

// leave takes the flow from its queue pair, which has read and consumed so many bytes
// of both directions, and of which the peer has proved that it consumed freed ones.
// What the application has taken by then is said again.
func (l *Ledger) leave(read, freed, consumed uint64) {
	l.Demoted, l.Read, l.freed = true, read, freed
	l.Received, l.Consumed, l.Reported = consumed, consumed, consumed
	l.Rx = min(l.Rx, RxShut)
}

// Carried reports whether a queue pair carries the flow.
func (l *Ledger) Carried() bool { return l.Peer != PeerRelays && !l.Demoted }

// endTx ends the own direction after so many bytes: END says so.
func (l *Ledger) endTx(final uint64) { l.Tx, l.Read = max(l.Tx, TxEnded), final }

// shutRx: the application has got all of the peer's direction, and its end.
func (l *Ledger) shutRx() { l.Rx, l.Received = max(l.Rx, RxShut), l.Final }

// record acts on one record. Another reason than none ends the flow.
func (l *Ledger) record(rec negotiate.Record) negotiate.Reason {
	ok := true
	switch rec.Type {
	case negotiate.RecordData:
		ok = l.data(rec)
	case negotiate.RecordEnd:
		ok = l.peerEnd(rec.Offset)
	case negotiate.RecordHave:
		return l.have(rec)
	case negotiate.RecordDemote:
		ok = l.Peer == PeerCarried
		l.Peer = PeerLeft
	case negotiate.RecordDemoteDone:
		ok = l.Demoted && l.Peer == PeerRelays && !l.done
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
func (l *Ledger) data(rec negotiate.Record) bool {
	end := rec.Offset + uint64(len(rec.Payload))
	if l.Peer != PeerRelays || rec.Offset != l.Received || end > l.Reported+Window || l.Rx != RxOpen && end > l.Final {
		return false
	}
	l.Received = end
	return true
}

func (l *Ledger) peerEnd(final uint64) bool {
	if l.Rx != RxOpen && l.Final != final || final < l.Received {
		return false
	}
	l.Rx, l.Final = max(l.Rx, RxKnown), final
	return true
}

// have is what the peer's application has taken. Of a peer that has just left
// its queue pair it says where the own direction goes on; before that it can only
// be the end of it.
func (l *Ledger) have(rec negotiate.Record) negotiate.Reason {
	switch {
	case l.Carried() && l.Tx == TxOpen: // of bytes that only the queue pair counts
		return negotiate.ReasonNone
	case rec.Offset > l.Read, l.Peer == PeerRelays && rec.Offset > l.Sent, l.Tx == TxTaken && rec.Offset < l.Read:
		return negotiate.ReasonProtocolError
	case l.Peer == PeerLeft && rec.Offset < l.freed:
		return negotiate.ReasonLostBytes
	case l.Peer == PeerLeft:
		l.Peer, l.Sent = PeerRelays, rec.Offset
	}
	if l.Tx == TxEnded && rec.Offset == l.Read && rec.Window == 0 { // with a window it may have been sent before END came
		l.Tx = TxTaken
	}
	if l.Peer == PeerRelays {
		l.Allowed = max(l.Allowed, rec.Offset+rec.Window)
	}
	return negotiate.ReasonNone
}

// Room returns how many bytes of DATA the peer takes now.
func (l *Ledger) Room() uint64 {
	if l.Peer != PeerRelays {
		return 0
	}
	return l.Allowed - l.Sent
}

// Tail reports whether what is sent next was sent before.
func (l *Ledger) Tail() bool { return l.Sent < l.Read }

// Left reports whether the peer needs nothing of the queue pair any more, nor the
// own side: the peer has said from where on it needs bytes, and it has those of
// the tail.
func (l *Ledger) Left() bool { return l.Peer == PeerRelays && !l.Tail() }

// Send counts n bytes of DATA, at most room and the rest of the tail, and returns
// their offset.
func (l *Ledger) Send(n int) (offset uint64) {
	offset = l.Sent
	l.Sent += uint64(n)
	l.Read = max(l.Read, l.Sent)
	return offset
}

// BothEnd reports whether both directions have ended.
func (l *Ledger) BothEnd() bool { return l.Tx != TxOpen && l.Rx != RxOpen }

// Delivered reports whether the application has every byte that the peer sent.
func (l *Ledger) Delivered() bool { return l.Rx != RxOpen && l.Consumed == l.Final }

// Consume counts bytes that the application has taken.
func (l *Ledger) Consume(n int) { l.Consumed += uint64(n) }

// Due reports whether enough was consumed since the last HAVE to be worth another one.
func (l *Ledger) Due() bool { return l.Consumed-l.Reported >= windowUpdate }

// Report returns what HAVE says. The window begins there.
func (l *Ledger) Report() (consumed uint64) {
	l.Reported = l.Consumed
	return l.Consumed
}

// tell reports whether HAVE{final} is to be sent now, and counts it as sent. While a
// queue pair carries, it goes after the own END: the peer can do nothing with it
// before that, and a program that answers the end of a connection with its own makes
// both one segment. A client that resets the wire leg now has no need to say it.
func (l *Ledger) tell(client bool) bool {
	if l.Rx != RxShut || l.Carried() && (l.Tx == TxOpen || client && l.Tx == TxTaken && l.LegDone) {
		return false
	}
	l.Rx = RxTold
	return true
}

// lost is the end of the wire leg: after END from both sides and with all bytes
// here it is the client's goodbye, otherwise an abort.
func (l *Ledger) lost() (orderly bool) {
	if l.Tx == TxOpen || l.Rx == RxOpen || l.Received != l.Final {
		return false
	}
	l.Tx = TxTaken
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
func (l *Ledger) outcome(client, gone bool) outcome {
	over := l.Tx == TxTaken && l.Rx >= RxShut && l.LegDone
	switch {
	case over && (client || gone):
		return isOver
	case over:
		return lingers
	case !client && l.Carried() && l.Tx != TxOpen && l.Rx != RxOpen && l.LegDone:
		return asks
	default:
		return goesOn
	}
}
