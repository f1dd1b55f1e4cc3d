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
	ByNothing By = iota // not carried
	ByLink              // an RDMA carrier
	ByRelay             // records on the wire leg
	ByRaw               // the wire leg, for a client that is native
)

// Act is what a connection wants done.
type Act uint8

// What a connection wants done.
const (
	Queue           Act = iota // append Record to those that wait for the wire leg
	Flush                      // give the waiting records to the wire leg now
	Look                       // service the wire leg in this turn, which writes what is due
	Pump                       // run the link's pump
	DrainLink                  // take in what has arrived by the link, then call LinkDrained with Cause
	Relay                      // leave the link because of Cause; the relay carries from here on
	LinkUnused                 // the peer will not use its queue pair any more
	SetLinger                  // call Linger in After
	SetPatience                // call Patience in After
	ProbeWire                  // have TCP probe the peer every After
	CancelHandshake            // have the handshake fall back because of Verdict
	CountFallback              // count the connection as native from here on, because of Verdict
	End                        // end the connection by Ending, because of Verdict
)

// Action is one thing that a connection wants done. Actions must be done in order.
type Action struct {
	Do      Act
	Record  negotiate.Record
	Cause   string
	After   time.Duration
	Ending  *Ending
	Verdict negotiate.Verdict
	Word    negotiate.Reason // for End: what the peer is told
}

// exchange tells whether records are exchanged.
//
//	waiting ── CONFIRM has passed ──► talking ── the connection ends ──► silent
type exchange uint8

const (
	waiting exchange = iota
	talking
	silent
)

// Core is one connection, without I/O or a clock. Its methods are the events; they return the resulting actions. The
// ledger records how far both directions are. A connection that has ended returns no actions. Core is not safe for
// concurrent use.
type Core struct {
	Ledger
	side   report.Side
	phase  Phase
	by     By
	reason negotiate.Reason // why it is not, or no longer, carried
	remote bool             // whether the peer decided

	handshake bool // whether one has begun
	fellBack  bool // already counted as a fallback

	exchange exchange
	wanted   string  // why to leave the link as soon as records are exchanged; empty: no need
	failed   string  // why the link has failed; it is left when patience ends
	gone     bool    // the wire leg has ended
	waits    outcome // what linger was set for; goesOn: it is not set
	asked    bool    // whether the client's reset has been asked for
}

// New returns the core of a connection that was accepted.
func New(side report.Side) Core { return Core{side: side, phase: Accepted} }

// Phase returns the phase of the connection.
func (c *Core) Phase() Phase { return c.phase }

// By returns what moves the bytes.
func (c *Core) By() By { return c.by }

// Ended reports whether the connection has ended.
func (c *Core) Ended() bool { return c.phase.Final() }

// Why returns why the connection is not, or no longer, carried, and whether the peer decided it.
func (c *Core) Why() (r negotiate.Reason, remote bool) { return c.reason, c.remote }

// Talks reports whether records are exchanged.
func (c *Core) Talks() bool { return c.exchange == talking }

// Silent reports whether no more records are exchanged.
func (c *Core) Silent() bool { return c.exchange == silent }

// Gone reports whether the wire leg has ended.
func (c *Core) Gone() bool { return c.gone }

func (c *Core) client() bool { return c.side == report.SideClient }

// because records why the connection left its path, and which side decided. Only the first reason is kept: later ones
// are its consequences.
func (c *Core) because(r negotiate.Reason, remote bool) {
	if c.reason == negotiate.ReasonNone {
		c.reason, c.remote = r, remote
	}
}

// on moves the connection along the table. An event for which the phase has no row is late, and ignored.
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

// end ends the connection. A carried connection that aborts has a reason of its own for that, which replaces the reason
// for its carrier.
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

// fallback counts the connection as native, once, regardless of what happens to it later.
func (c *Core) fallback(v negotiate.Verdict) []Action {
	if c.fellBack {
		return nil
	}
	c.fellBack = true
	return []Action{{Do: CountFallback, Verdict: v}}
}

// HandshakeBegins records that the handshake has begun.
func (c *Core) HandshakeBegins() { c.handshake = true }

// Negotiates records that PROPOSAL was sent or read.
func (c *Core) Negotiates() { c.on(Negotiates, negotiate.Verdict{}) }

// Completes records that ACCEPT was read.
func (c *Core) Completes() { c.on(Completes, negotiate.Verdict{}) }

// CarriedBy records what moves the bytes from here on. It returns false for a connection that has ended.
func (c *Core) CarriedBy(by By) bool {
	if c.Ended() {
		return false
	}
	switch c.by = by; by {
	case ByLink:
		c.Ledger = newCarriedLedger()
	case ByRelay:
		c.Ledger = newLedger()
		c.because(negotiate.ReasonCarrierUnreachable, !c.client()) // it is the client that proves a carrier
	case ByRaw, ByNothing:
	}
	c.on(Carries, negotiate.Verdict{})
	return true
}

// LosesAccept records, at the server, that the client is native since its ACCEPT was lost.
func (c *Core) LosesAccept() []Action {
	v := negotiate.Verdict{Outcome: negotiate.OutcomeRaw, Reason: negotiate.ReasonAcceptLost}
	if c.Ended() {
		return nil
	}
	c.because(v.Reason, false)
	return c.fallback(v)
}

// Releases ends a client's connection whose handshake returns it to the kernel.
func (c *Core) Releases(v negotiate.Verdict) []Action { return c.on(Releases, v) }

// HandshakeAborts ends the connection on behalf of the handshake. mute means that no packet may leave. A connection
// that already carries, since bytes of its client came before CONFIRM, ends like any other carried one.
func (c *Core) HandshakeAborts(v negotiate.Verdict, mute bool) []Action {
	if carried.has(c.phase) && c.by != ByRaw {
		return c.Aborts(v.Reason, v.Remote)
	}
	declines := v.Outcome == negotiate.OutcomeDeclined || v.Reason == negotiate.ReasonClientGone // native without us, or never was
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

// Aborts ends both legs at once. As with RST, bytes still on their way may be lost, but not those that have arrived.
func (c *Core) Aborts(r negotiate.Reason, remote bool) []Action {
	return c.on(Aborts, negotiate.Verdict{Reason: r, Remote: remote})
}

// RawLegEnds records that the application of a raw relay has ended its direction.
func (c *Core) RawLegEnds() {
	c.Tx = TxEnded
	c.on(Ends, negotiate.Verdict{})
}

// RawWireEnds records that the client of a raw relay has ended its direction, and that the application has been told.
func (c *Core) RawWireEnds() {
	c.Rx = RxShut
	c.on(Ends, negotiate.Verdict{})
}

// RawOver ends a raw relay in order.
func (c *Core) RawOver() []Action { return c.on(RawOver, negotiate.Verdict{}) }

// Replaced ends the connection because its tuple belongs to a newer one. No packet may leave.
func (c *Core) Replaced() []Action {
	return c.on(Replaces, negotiate.Verdict{Remote: !c.client()})
}

// GivenBack ends a connection that the programs have returned to the kernel, and whose outcome they have recorded:
// because the gateway was late (late), or because the tuple has a new connection. A client that sent another SYN
// instead of the third ACK never had a connection.
func (c *Core) GivenBack(late bool) []Action {
	if late || !c.client() && c.phase == Accepted {
		return c.on(GoesNative, negotiate.Verdict{})
	}
	return c.Replaced()
}

// Vanishes ends a server's connection whose wire leg never came.
func (c *Core) Vanishes(r negotiate.Reason) []Action {
	return c.on(Vanishes, negotiate.Verdict{Reason: r, Remote: r == negotiate.ReasonClientGone})
}

// Cancel ends the connection because the gateway ends, or is to carry nothing: during its handshake it falls back, and
// if it is carried it is reset. A client's connection always has a handshake; one that has not begun yet checks for
// this itself when it begins.
func (c *Core) Cancel(r negotiate.Reason) []Action {
	v := negotiate.Verdict{Reason: r}
	switch {
	case c.Ended(), handshakes.has(c.phase) && c.client() && !c.handshake:
		return nil
	case handshakes.has(c.phase) && c.handshake:
		return []Action{{Do: CancelHandshake, Verdict: v}}
	case handshakes.has(c.phase): // half open: the client tries again on its own
		return c.on(Cancels, v)
	default:
		return c.Aborts(r, false)
	}
}

// Panicked ends a connection whose own code can no longer be trusted. It asks that code nothing: data that has arrived
// for the application is not delivered, since it is unknown how much of it already was. untouched means that the SYN of
// a client's application was not handed over yet. Once it may have been, the application is either connected to us, and
// a dead entry brings it our reset, or it is not, and a dead entry lets its next SYN pass. mute means that no packet of
// a server may leave.
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
