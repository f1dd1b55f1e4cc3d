package flow

import "github.com/smcgw/smcgw/negotiate"

const (
	// Window is how far a direction of the relay may be ahead of the application that consumes it, in bytes: the first
	// window of both sides of a connection that began on the relay (docs/PROTOCOL.md "Records").
	Window = 256 << 10
	// windowUpdate is how many bytes must be consumed before HAVE is worth sending.
	windowUpdate = Window / 4
)

// Ledger records how far both directions of a carried flow are, and what the peer may send next: the protocol of
// records, without I/O (docs/PROTOCOL.md "Records", "Demotion", "Teardown"). Each fact is here and nowhere else,
// whatever carries the bytes. Offsets count the bytes of a direction from 0. While a queue pair carries, its endpoint
// has the offsets, and the Ledger only those named in records.
//
// A flow that begins on the relay begins in relays. One with a queue pair begins in carried, and has left it once
// Demoted is set, which the peer may not know yet. Its own direction then waits until HAVE, in left, says from which
// offset to send again.
//
//	carried ── DEMOTE ──► left ── HAVE{consumed, window} ──► relays
//	 END, HAVE{final}      END                                DATA, END, HAVE, one DEMOTE-DONE
//
// Anything else violates the protocol. Ledger is not safe for concurrent use.
type Ledger struct {
	Peer    PeerPhase
	Demoted bool // the flow has left a queue pair

	// The own direction: Sent ≤ Read. The bytes between them are the tail: the queue pair has sent them, and they must
	// be sent again.
	Tx      TxPhase
	Sent    uint64 // by DATA, or known to be consumed by the peer
	Read    uint64 // taken from the application
	Allowed uint64 // the offset up to which DATA may be sent
	freed   uint64 // the peer has proved, before leaving, that it consumed these

	// The peer's direction: Reported ≤ Consumed ≤ Received.
	Rx       RxPhase
	Received uint64
	Consumed uint64 // by the application
	Reported uint64 // Consumed as of the last HAVE
	Final    uint64 // length of the direction, if it is known

	LegDone bool // the application's kernel has all of both directions
	done    bool // DEMOTE-DONE was read
}

// PeerPhase is what the peer may send.
type PeerPhase uint8

// What the peer may send.
const (
	PeerRelays  PeerPhase = iota // DATA, END, HAVE
	PeerCarried                  // END and HAVE{final}, beside a link
	PeerLeft                     // END, and the HAVE that says where the own direction goes on
)

// TxPhase is the state of the own direction.
//
//	open ── END sent ──► ended ── HAVE{final} read, or wire leg lost in order ──► taken
type TxPhase uint8

// The states of the own direction.
const (
	TxOpen  TxPhase = iota
	TxEnded         // the application has ended it
	TxTaken         // the peer's application has all of it, and its end
)

// RxPhase is the state of the peer's direction.
//
//	open ── END read ──► known ── all bytes and the end given ──► shut ── HAVE{final} sent ──► told
//	                                                               ▲                          │
//	                                                               └──── queue pair left ─────┘
type RxPhase uint8

// The states of the peer's direction.
const (
	RxOpen  RxPhase = iota
	RxKnown         // its end is known
	RxShut          // the application has all of it, and its end
	RxTold          // the peer was told so
)

// newLedger returns the ledger of a flow that begins on the relay.
func newLedger() Ledger { return Ledger{Allowed: Window} }

// newCarriedLedger returns the ledger of a flow that begins on a queue pair.
func newCarriedLedger() Ledger { return Ledger{Peer: PeerCarried} }

// leave takes the flow off its queue pair. The queue pair has read and consumed these numbers of bytes of the two
// directions, and the peer has proved that it consumed freed of those read. What the own application has consumed is
// reported anew.
func (l *Ledger) leave(read, freed, consumed uint64) {
	l.Demoted, l.Read, l.freed = true, read, freed
	l.Received, l.Consumed, l.Reported = consumed, consumed, consumed
	l.Rx = min(l.Rx, RxShut)
}

// Carried reports whether a queue pair carries the flow.
func (l *Ledger) Carried() bool { return l.Peer != PeerRelays && !l.Demoted }

// endTx ends the own direction at offset final, as END says.
func (l *Ledger) endTx(final uint64) { l.Tx, l.Read = max(l.Tx, TxEnded), final }

// shutRx records that the application has all of the peer's direction, and its end.
func (l *Ledger) shutRx() { l.Rx, l.Received = max(l.Rx, RxShut), l.Final }

// record acts on one record. A reason other than none ends the flow.
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

// data accepts a payload. One that is beyond the window, out of order or too early is a violation.
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

// have takes what the peer's application has consumed. From a peer that has just left its queue pair, it says where the
// own direction goes on; before that it can only mean the end of the direction.
func (l *Ledger) have(rec negotiate.Record) negotiate.Reason {
	switch {
	case l.Carried() && l.Tx == TxOpen: // about bytes that only the queue pair counts
		return negotiate.ReasonNone
	case rec.Offset > l.Read, l.Peer == PeerRelays && rec.Offset > l.Sent, l.Tx == TxTaken && rec.Offset < l.Read:
		return negotiate.ReasonProtocolError
	case l.Peer == PeerLeft && rec.Offset < l.freed:
		return negotiate.ReasonLostBytes
	case l.Peer == PeerLeft:
		l.Peer, l.Sent = PeerRelays, rec.Offset
	}
	if l.Tx == TxEnded && rec.Offset == l.Read && rec.Window == 0 { // else perhaps sent before END came
		l.Tx = TxTaken
	}
	if l.Peer == PeerRelays {
		l.Allowed = max(l.Allowed, rec.Offset+rec.Window)
	}
	return negotiate.ReasonNone
}

// Room returns how many bytes of DATA may be sent now.
func (l *Ledger) Room() uint64 {
	if l.Peer != PeerRelays {
		return 0
	}
	return l.Allowed - l.Sent
}

// Tail reports whether what is to be sent next has been sent before, by the queue pair.
func (l *Ledger) Tail() bool { return l.Sent < l.Read }

// Left reports whether neither side needs the queue pair any more: the peer has said from where on it needs bytes, and
// the tail has been sent.
func (l *Ledger) Left() bool { return l.Peer == PeerRelays && !l.Tail() }

// Send counts n bytes of DATA as sent and returns their offset. n is at most Room, and at most the rest of the tail if
// there is one.
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

// Consume counts n bytes that the application has consumed.
func (l *Ledger) Consume(n int) { l.Consumed += uint64(n) }

// Due reports whether so much was consumed since the last HAVE that another one is worth sending.
func (l *Ledger) Due() bool { return l.Consumed-l.Reported >= windowUpdate }

// Report returns the offset for HAVE, from which the window counts.
func (l *Ledger) Report() (consumed uint64) {
	l.Reported = l.Consumed
	return l.Consumed
}

// tell reports whether HAVE{final} is to be sent now, and counts it as sent. While a queue pair carries, it follows the
// own END: the peer cannot use it earlier, and if a program answers the end of a connection with its own, both fit in
// one segment. A client that is about to reset the wire leg need not send it.
func (l *Ledger) tell(client bool) bool {
	if l.Rx != RxShut || l.Carried() && (l.Tx == TxOpen || client && l.Tx == TxTaken && l.LegDone) {
		return false
	}
	l.Rx = RxTold
	return true
}

// lost handles the end of the wire leg. It is the client's goodbye, and orderly, if both sides have sent END and all
// bytes are here; otherwise it is an abort.
func (l *Ledger) lost() (orderly bool) {
	if l.Tx == TxOpen || l.Rx == RxOpen || l.Received != l.Final {
		return false
	}
	l.Tx = TxTaken
	return true
}

// outcome is what follows for a flow once all its records have been handled.
type outcome uint8

const (
	goesOn  outcome = iota
	asks            // the client's reset, which says that it has everything, may have been lost
	lingers         // wait for the client to reset the wire leg
	isOver          // both directions have ended, and both applications have everything
)

// outcome returns the outcome for this side; gone says whether the wire leg has ended.
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
