package flow

import (
	"time"

	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/negotiate"
)

const (
	// ServerLinger is how long a server waits for the client to reset the wire leg after both directions have ended.
	ServerLinger = 5 * time.Second
	// ResetMissed is how long a server waits before it asks for a reset that has not come. It asks while the client's
	// gateway still remembers the tuple, which is for ServerLinger. Later the client's kernel would have to answer,
	// which it does not do before its own TIME_WAIT is over.
	ResetMissed = time.Second
	// BreakPatience is how long a connection whose link has failed waits for what the peer may say on the wire leg: if
	// the peer has ended the connection its queue pair fails, too, and the failure may arrive first.
	BreakPatience = 50 * time.Millisecond
)

// record returns an action that queues a record.
func record(t negotiate.RecordType, offset, window uint64) Action {
	return Action{Do: Queue, Record: negotiate.Record{Type: t, Offset: offset, Window: window}}
}

// Talk records that the wire leg carries records from here on. It returns false if it already does, or if the
// connection has ended.
func (c *Core) Talk() bool {
	if c.exchange != waiting || c.Ended() {
		return false
	}
	c.exchange = talking
	return true
}

// Talked must be called when the first records have been read. It leaves the link if that was wanted before.
func (c *Core) Talked() []Action {
	if c.wanted == "" {
		return nil
	}
	return c.Leave(c.wanted)
}

// Record handles a record of the wire leg. For a connection with a link, received is how many bytes of the peer's
// direction have arrived by it. The caller delivers the payload of DATA, unless the connection has ended.
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

// WireEnded handles the end of the wire leg: FIN, RST, or a silence that TCP has waited out. received is as in Record.
// If either side has not sent END it is an abort; otherwise the client has done its part, if its bytes are here. A link
// that has them delivers them, and is not left any more.
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

// LegEnds records that the application has ended its direction at offset final.
func (c *Core) LegEnds(final uint64) []Action {
	if c.Ended() {
		return nil
	}
	c.endTx(final)
	c.on(Ends, negotiate.Verdict{})
	return []Action{record(negotiate.RecordEnd, final, 0), {Do: Look}}
}

// LegEndsUnsaid is LegEnds for a link that has failed: leaving the link sends END.
func (c *Core) LegEndsUnsaid(final uint64) { c.endTx(final) }

// LegShut records that the application has all of the peer's direction, and its end.
func (c *Core) LegShut() []Action {
	c.shutRx()
	c.on(Ends, negotiate.Verdict{})
	if c.by == ByLink {
		return []Action{{Do: Look}}
	}
	return nil
}

// LegDelivered records that the application's kernel has everything.
func (c *Core) LegDelivered() []Action {
	c.LegDone = true
	if c.by == ByLink {
		return []Action{{Do: Look}}
	}
	return nil
}

// Pay sends HAVE{final} if it is due.
func (c *Core) Pay() []Action {
	if c.exchange == silent || !c.tell(c.client()) {
		return nil
	}
	return []Action{record(negotiate.RecordHave, c.Final, 0)}
}

// Ask asks the peer for a sign of life. It need not if records wait (pending): the peer has to acknowledge those.
func (c *Core) Ask(pending bool) []Action {
	if c.exchange != talking || c.by != ByLink || c.gone || pending {
		return nil
	}
	return []Action{record(negotiate.RecordKeepalive, 0, 0), {Do: Flush}}
}

// Settle ends the connection when nothing is left to do on it: the client resets the wire leg; the server waits for
// that reset, for a limited time. Call it after everything else has been done. pending says whether records wait.
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

// Settled reports whether the connection has ended, or is about to.
func (c *Core) Settled() bool { return c.Ended() || c.waits == lingers }

func (c *Core) await(what outcome, pause time.Duration) []Action {
	if c.waits == what {
		return nil
	}
	c.waits = what
	return []Action{{Do: SetLinger, After: pause}}
}

// Linger must be called when the time of SetLinger is up. It ends the connection if the client does not leave the wire
// leg, or asks for the client's reset: first by TCP's probes, which a gateway that has ended the connection answers
// with the reset that was lost, and later by a record.
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
	return append(todo, c.Settle(pending)...) // which waits again
}

// LinkFails handles a failure of the link. If the peer lives (survives), the connection goes on over the relay, after
// the peer has had time to say why.
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

// MindsLink reports whether a failure of the link matters. It does not if it is already known, or if the link has
// nothing left to do: the peer's application has everything, and all bytes of the peer are here. received is as in
// Record.
func (c *Core) MindsLink(received uint64) bool {
	return !c.Ended() && c.by == ByLink && c.failed == "" && (c.Tx != TxTaken || c.Rx == RxOpen || received != c.Final)
}

// Patience must be called when the time of SetPatience is up. It leaves the link that has failed.
func (c *Core) Patience() []Action { return c.Leave(c.failed) }

// Leave moves the connection from its link to the relay, at its current offsets; there is no way back. If no records
// are exchanged yet, it waits for them and has the peer probed, since no link reports the peer's end. After the end of
// the wire leg the link is not left: it has every byte of the peer, and what it has not delivered could not be sent
// again.
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

// Drained is the state of a link from which everything that has arrived has been taken in.
type Drained struct {
	Cause     string
	Sent      uint64 // by the link
	Freed     uint64 // of Sent, what the peer has proved to have consumed
	Consumed  uint64 // of the peer's direction
	Convicted bool   // the peer has violated the protocol on the link
	Reset     bool   // the application has reset the connection
}

// LinkDrained leaves the link. The records that say so are sent immediately, if the wire leg takes them.
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
