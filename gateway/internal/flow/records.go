package flow

import (
	"time"

	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/negotiate"
)

const (
	// ServerLinger is how long a server waits for the client to reset the wire leg
	// after both directions have ended.
	ServerLinger = 5 * time.Second
	// ResetMissed is when a server begins to ask for a reset that does not come: while
	// the client's gateway still remembers the tuple, which is ServerLinger. Later the
	// client's kernel has to answer, and does not before its own TIME_WAIT is over.
	ResetMissed = time.Second
	// BreakPatience is how long a connection whose link has failed waits for what the
	// peer has to say on the wire leg: the queue pair of a connection that the peer has
	// ended fails too, and may be ahead of that.
	BreakPatience = 50 * time.Millisecond
)

// record is an action that queues one.
func record(t negotiate.RecordType, offset, window uint64) Action {
	return Action{Do: Queue, Record: negotiate.Record{Type: t, Offset: offset, Window: window}}
}

// Talk says that the wire leg has records from here on; Talked that the first of them
// were read. It reports false where that is so already, or over.
func (c *Core) Talk() bool {
	if c.exchange != waiting || c.Ended() {
		return false
	}
	c.exchange = talking
	return true
}

// Talked leaves the link if that was wanted before.
func (c *Core) Talked() []Action {
	if c.wanted == "" {
		return nil
	}
	return c.Leave(c.wanted)
}

// Record is a record of the wire leg. Of a connection with a link, received is how many
// bytes of the peer's direction that has. Payload of DATA is the caller's to deliver,
// unless the connection has ended.
func (c *Core) Record(rec negotiate.Record, received uint64) []Action {
	if c.exchange != talking {
		return nil
	}
	if c.by == ByLink {
		c.Received = received
	}
	if why := c.record(rec); why != negotiate.ReasonNone {
		return c.Aborts(why, rec.Type == negotiate.RecordAbort)
	}
	switch rec.Type {
	case negotiate.RecordEnd:
		if c.by == ByLink {
			c.on(Ends, negotiate.Verdict{})
			return []Action{{Do: Pump}}
		}
	case negotiate.RecordDemote:
		return c.Leave(report.DemotedByPeer)
	case negotiate.RecordDemoteDone:
		return []Action{{Do: LinkUnused}}
	case negotiate.RecordData, negotiate.RecordHave, negotiate.RecordAbort, negotiate.RecordKeepalive:
	}
	return nil
}

// WireEnded says that the wire leg has ended: FIN, RST, or a silence TCP has waited out;
// received as in Record. Before END from both sides that is an abort; after, the client
// has done its part, if its bytes are here. A link that has them delivers them, and is not
// left any more.
func (c *Core) WireEnded(received uint64) []Action {
	if c.Ended() {
		return nil
	}
	c.gone = true
	if c.by == ByLink && c.BothEnd() && c.Rx == RxKnown {
		c.Received = received
	}
	switch {
	case !c.lost():
		return c.Aborts(negotiate.ReasonWireReset, true)
	case c.by == ByLink:
		return []Action{{Do: Pump}}
	default:
		return nil
	}
}

// LegEnds says that the application has ended its direction after so many bytes.
func (c *Core) LegEnds(final uint64) []Action {
	if c.Ended() {
		return nil
	}
	c.endTx(final)
	c.on(Ends, negotiate.Verdict{})
	return []Action{record(negotiate.RecordEnd, final, 0), {Do: Look}}
}

// LegEndsUnsaid is LegEnds where the link has failed: what leaves it says so.
func (c *Core) LegEndsUnsaid(final uint64) { c.endTx(final) }

// LegShut says that the application has got all of the peer's direction, and its end.
func (c *Core) LegShut() []Action {
	c.shutRx()
	c.on(Ends, negotiate.Verdict{})
	if c.by == ByLink {
		return []Action{{Do: Look}}
	}
	return nil
}

// LegDelivered says that the kernel of the application has everything.
func (c *Core) LegDelivered() []Action {
	c.LegDone = true
	if c.by == ByLink {
		return []Action{{Do: Look}}
	}
	return nil
}

// Pay sends HAVE{final}, if it is time for it.
func (c *Core) Pay() []Action {
	if c.exchange == silent || !c.tell(c.client()) {
		return nil
	}
	return []Action{record(negotiate.RecordHave, c.Final, 0)}
}

// Ask asks the peer for a sign of life, unless something it has to acknowledge is on its
// way: records that wait.
func (c *Core) Ask(pending bool) []Action {
	if c.exchange != talking || c.by != ByLink || c.gone || pending {
		return nil
	}
	return []Action{record(negotiate.RecordKeepalive, 0, 0), {Do: Flush}}
}

// Settle ends the connection when nothing is left to do on it: the client resets the wire
// leg, the server waits for that reset, but not for ever. It is called when everything
// else has been done; pending: records wait.
func (c *Core) Settle(pending bool) []Action {
	if c.exchange == silent || pending {
		return nil
	}
	switch next := c.outcome(c.client(), c.gone); next {
	case isOver:
		return c.on(Over, negotiate.Verdict{})
	case lingers:
		return c.await(lingers, ServerLinger)
	case asks:
		pause := ServerLinger
		if !c.asked {
			pause = ResetMissed
		}
		return c.await(asks, pause)
	case goesOn:
	}
	return nil
}

// Settled reports whether the end is there, or near.
func (c *Core) Settled() bool { return c.Ended() || c.waits == lingers }

func (c *Core) await(what outcome, pause time.Duration) []Action {
	if c.waits == what {
		return nil
	}
	c.waits = what
	return []Action{{Do: SetLinger, After: pause}}
}

// Linger is due: it ends the connection of a client that does not leave the wire leg, or
// asks for its reset. TCP does so first, whose probes a gateway that has ended the
// connection answers by the reset that was lost, and a record later.
func (c *Core) Linger(pending bool) (todo []Action) {
	was := c.waits
	c.waits = goesOn
	switch {
	case c.exchange == silent:
		return nil
	case was == lingers:
		return c.on(Over, negotiate.Verdict{})
	case !c.asked:
		c.asked = true
		todo = []Action{{Do: ProbeWire, After: ResetMissed}}
	default:
		todo = c.Ask(pending)
	}
	return append(todo, c.Settle(pending)...) // to wait again
}

// LinkFails says that the link has failed, because of a reason. Where the peer lives
// (survives) the connection goes on over the relay: first the peer may say why. received
// is as in Record.
func (c *Core) LinkFails(r negotiate.Reason, survives bool) []Action {
	switch {
	case c.Ended(), c.by != ByLink, c.failed != "":
		return nil
	case !survives:
		return c.Aborts(r, false)
	}
	c.failed = r.String()
	return []Action{{Do: SetPatience, After: BreakPatience}}
}

// MindsLink reports whether the failure of the link matters: not where that is known, and
// not where there is nothing left to do for it. The peer's application has everything
// then, and all of its bytes are here.
func (c *Core) MindsLink(received uint64) bool {
	return !c.Ended() && c.by == ByLink && c.failed == "" && (c.Tx != TxTaken || c.Rx == RxOpen || received != c.Final)
}

// Patience is due: the link that has failed is left.
func (c *Core) Patience() []Action { return c.Leave(c.failed) }

// Leave moves the connection from its link to the relay, at the byte where it stands:
// final for it. Where no records are exchanged yet that waits, and the peer is asked
// whether it lives: no link tells of its end. After the end of the wire leg the link is
// not left: it has every byte of the peer, and what it has not delivered is not sent again.
func (c *Core) Leave(cause string) []Action {
	switch {
	case c.Ended(), c.by != ByLink, c.gone:
		return nil
	case c.exchange == waiting:
		c.wanted = cause
		return []Action{{Do: ProbeWire, After: ResetMissed}}
	}
	return []Action{{Do: DrainLink, Cause: cause}}
}

// Drained is where a link stands from which everything was taken in that has arrived.
type Drained struct {
	Cause     string
	Sent      uint64 // by it
	Freed     uint64 // of them, that the peer has proved to have consumed
	Consumed  uint64 // of the peer's direction
	Convicted bool   // the peer has broken the protocol there
	Reset     bool   // the application has reset the connection
}

// LinkDrained leaves the link. The records that say so leave at once, if the wire leg
// takes them.
func (c *Core) LinkDrained(d Drained) []Action {
	switch {
	case c.Ended(), c.by != ByLink:
		return nil
	case d.Reset:
		return c.Aborts(negotiate.ReasonAppReset, false)
	case d.Cause == report.DemotedByPeer && d.Convicted:
		return c.Aborts(negotiate.ReasonProtocolError, false)
	case c.gone: // while the link was drained
		return nil
	}
	c.by = ByRelay
	c.leave(d.Sent, d.Freed, d.Consumed)
	todo := []Action{
		{Do: Relay, Cause: d.Cause}, record(negotiate.RecordDemote, 0, 0), record(negotiate.RecordHave, c.Consumed, Window),
	}
	if c.Tx != TxOpen {
		todo = append(todo, record(negotiate.RecordEnd, c.Read, 0))
	}
	return append(todo, Action{Do: Flush})
}
