package flow

import (
	"time"

	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/negotiate"
)

// By is what moves the bytes of a connection.
type By uint8

// What moves the bytes of a connection.
const (
	ByNothing By = iota // it is not carried
	ByLink              // an rdma carrier
	ByRelay             // records on the wire leg
	ByRaw               // the wire leg, of a client that is native
)

// Act is what a connection wants done.
type Act uint8

// What a connection wants done.
const (
	Queue           Act = iota // Record goes after the records that wait for the wire leg
	Flush                      // what waits is given to the wire leg now
	Look                       // the wire leg is looked at, in this turn: what it is owed is written
	Pump                       // the link's pump moves what it can
	DrainLink                  // what has arrived by the link is taken in, then LinkDrained; Cause says why
	Relay                      // the link is left: the relay goes on, because of Cause
	LinkUnused                 // the peer has left its queue pair for good
	SetLinger                  // Linger is due After from now
	SetPatience                // Patience is due After from now
	ProbeWire                  // TCP asks for a sign of life, every After
	CancelHandshake            // the handshake gives the connection back, because of Verdict
	CountFallback              // the connection is native from here on, because of Verdict
	End                        // the connection ends by Ending, because of Verdict
)

// Action is one thing that a connection wants done. They are done in order.
type Action struct {
	Do      Act
	Record  negotiate.Record
	Cause   string
	After   time.Duration
	Ending  *Ending
	Verdict negotiate.Verdict
	Word    negotiate.Reason // End: what the peer is told
}

// exchange is whether records are exchanged.
//
//	waiting ── CONFIRM has passed ──► talking ── the connection ends ──► silent
type exchange uint8

const (
	waiting exchange = iota
	talking
	silent
)

// Core is one connection without I/O and clock. What happens to it are its methods, and
// what follows are the actions they return; the ledger is where both directions stand. A
// connection that has ended returns none. It is not safe for concurrent use.
type Core struct {
	Ledger
	side   report.Side
	phase  Phase
	by     By
	reason negotiate.Reason // why it is not, or no longer, carried
	remote bool             // the peer decided

	handshake bool // one has begun
	fellBack  bool // it was counted as a fallback

	exchange exchange
	wanted   string  // the link is to be left as soon as records are exchanged, and why
	failed   string  // the link has failed, and why; it is left when patience ends
	gone     bool    // the wire leg has ended
	waits    outcome // what linger is for; goesOn: it is not set
	asked    bool    // for the client's reset
}

// New returns a connection that was accepted.
func New(side report.Side) Core { return Core{side: side, phase: Accepted} }

// Phase returns where the connection stands.
func (c *Core) Phase() Phase { return c.phase }

// By returns what moves the bytes.
func (c *Core) By() By { return c.by }

// Ended reports whether the connection has ended.
func (c *Core) Ended() bool { return c.phase.Final() }

// Why returns why the connection is not, or no longer, carried, and whether the peer
// decided that.
func (c *Core) Why() (r negotiate.Reason, remote bool) { return c.reason, c.remote }

// Talks reports whether records are exchanged.
func (c *Core) Talks() bool { return c.exchange == talking }

// Silent reports whether no more records are exchanged.
func (c *Core) Silent() bool { return c.exchange == silent }

// Gone reports whether the wire leg has ended.
func (c *Core) Gone() bool { return c.gone }

func (c *Core) client() bool { return c.side == report.SideClient }

// because records why the connection left its path, and which side decided. The first
// reason stays: what follows is its consequence.
func (c *Core) because(r negotiate.Reason, remote bool) {
	if c.reason == negotiate.ReasonNone {
		c.reason, c.remote = r, remote
	}
}

// on moves the connection along the table. An event that the phase has no row for is
// late, and none.
func (c *Core) on(e On, v negotiate.Verdict) []Action {
	t := transition(e, c.phase)
	if t == nil {
		return nil
	}
	if t.Ending == nil {
		c.phase = t.To
		return nil
	}
	if v.Reason == negotiate.ReasonNone {
		v.Reason = t.Reason
	}
	return c.end(t, v)
}

// end ends the connection. The end of one that is carried has a reason of its own, other
// than why it is on the carrier it is on.
func (c *Core) end(t *Transition, v negotiate.Verdict) (todo []Action) {
	if t.To == Aborted && carried.has(c.phase) {
		c.reason = negotiate.ReasonNone
	}
	c.because(v.Reason, v.Remote)
	c.phase, c.exchange = t.To, silent
	if t.Ending.FellBack.counts(c.side) {
		todo = c.fallback(v)
	}
	word := negotiate.ReasonNone
	if t.Ending.Tell && !v.Remote {
		word = v.Reason
	}
	return append(todo, Action{Do: End, Ending: t.Ending, Verdict: v, Word: word})
}

// fallback counts the connection as native, once, whatever becomes of it afterwards.
func (c *Core) fallback(v negotiate.Verdict) []Action {
	if c.fellBack {
		return nil
	}
	c.fellBack = true
	return []Action{{Do: CountFallback, Verdict: v}}
}

// HandshakeBegins says that a handshake runs.
func (c *Core) HandshakeBegins() { c.handshake = true }

// Negotiates says that PROPOSAL was sent or read.
func (c *Core) Negotiates() { c.on(Negotiates, negotiate.Verdict{}) }

// Completes says that ACCEPT was read.
func (c *Core) Completes() { c.on(Completes, negotiate.Verdict{}) }

// CarriedBy says what moves the bytes from here on. It reports false for a connection that
// has ended.
func (c *Core) CarriedBy(by By) bool {
	if c.Ended() {
		return false
	}
	switch c.by = by; by {
	case ByLink:
		c.Ledger = newCarriedLedger()
	case ByRelay:
		c.Ledger = newLedger()
		c.because(negotiate.ReasonCarrierUnreachable, !c.client()) // the client proves
	case ByRaw, ByNothing:
	}
	c.on(Carries, negotiate.Verdict{})
	return true
}

// LosesAccept says that the client of a server is native: its accept was lost.
func (c *Core) LosesAccept() []Action {
	v := negotiate.Verdict{Outcome: negotiate.OutcomeRaw, Reason: negotiate.ReasonAcceptLost}
	if c.Ended() {
		return nil
	}
	c.because(v.Reason, false)
	return c.fallback(v)
}

// Releases says that the handshake of a client gives the connection back to its kernel.
func (c *Core) Releases(v negotiate.Verdict) []Action { return c.on(Releases, v) }

// HandshakeAborts is the end that the handshake orders; mute: no packet may leave. A
// connection that carries already, since bytes of its client came before CONFIRM, ends as
// any other that carries.
func (c *Core) HandshakeAborts(v negotiate.Verdict, mute bool) []Action {
	if carried.has(c.phase) && c.by != ByRaw {
		return c.Aborts(v.Reason, v.Remote)
	}
	declines := v.Outcome == negotiate.OutcomeDeclined || v.Reason == negotiate.ReasonClientGone // it goes on without us, or never was
	switch {
	case declines && mute:
		return c.on(DeclinesMute, v)
	case declines:
		return c.on(Declines, v)
	case mute:
		return c.on(RefusesMute, v)
	default:
		return c.on(Refuses, v)
	}
}

// Aborts ends both legs at once: bytes on the way may be lost, as with RST, but not those
// that have arrived.
func (c *Core) Aborts(r negotiate.Reason, remote bool) []Action {
	return c.on(Aborts, negotiate.Verdict{Reason: r, Remote: remote})
}

// RawLegEnds says that the application of a raw relay has ended its direction.
func (c *Core) RawLegEnds() {
	c.Tx = TxEnded
	c.on(Ends, negotiate.Verdict{})
}

// RawWireEnds says that the client of a raw relay has ended its direction, and that the
// application was told so.
func (c *Core) RawWireEnds() {
	c.Rx = RxShut
	c.on(Ends, negotiate.Verdict{})
}

// RawOver is the end of a raw relay in order.
func (c *Core) RawOver() []Action { return c.on(RawOver, negotiate.Verdict{}) }

// Replaced says that the tuple belongs to a newer connection: not a packet may leave.
func (c *Core) Replaced() []Action {
	return c.on(Replaces, negotiate.Verdict{Remote: !c.client()})
}

// GivenBack says that the programs have left the connection to the kernel, and recorded
// what became of it: while the gateway was late (late), or because the tuple has a new
// connection. A client that sent another SYN instead of the third ACK never had one.
func (c *Core) GivenBack(late bool) []Action {
	if late || !c.client() && c.phase == Accepted {
		return c.on(GoesNative, negotiate.Verdict{})
	}
	return c.Replaced()
}

// Vanishes says that no wire leg of a server ever came.
func (c *Core) Vanishes(r negotiate.Reason) []Action {
	return c.on(Vanishes, negotiate.Verdict{Reason: r, Remote: r == negotiate.ReasonClientGone})
}

// Cancel ends the connection because the gateway ends, or is to carry nothing: in its
// handshake it falls back, what is carried is reset. A client's has a handshake from the
// beginning, which looks at that itself where it begins later.
func (c *Core) Cancel(r negotiate.Reason) []Action {
	v := negotiate.Verdict{Reason: r}
	switch {
	case c.Ended(), handshakes.has(c.phase) && c.client() && !c.handshake:
		return nil
	case handshakes.has(c.phase) && c.handshake:
		return []Action{{Do: CancelHandshake, Verdict: v}}
	case handshakes.has(c.phase): // half open: the client comes back by itself
		return c.on(Cancels, v)
	default:
		return c.Aborts(r, false)
	}
}

// Panicked ends a connection whose own code cannot be trusted any more. Nothing of it is
// asked: what had arrived for the application is not delivered, since how much of it had
// been is not known. untouched: the SYN of a client's application was not handed over
// yet; once it may have been, the application is connected to us or not, and a dead entry
// brings it our reset in the one case, and lets its next SYN pass in the other. mute: no
// packet of a server may leave.
func (c *Core) Panicked(untouched, mute bool) []Action {
	v := negotiate.Verdict{Reason: negotiate.ReasonInternalError}
	switch {
	case carried.has(c.phase):
	case !c.client():
		v.Outcome = negotiate.OutcomeAborted
		return c.HandshakeAborts(v, !c.handshake || mute)
	case untouched:
		v.Outcome = negotiate.OutcomeReleased
		return c.Releases(v)
	}
	return c.on(Panics, v)
}
