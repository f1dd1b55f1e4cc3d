package flow

import (
	"fmt"

	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/negotiate"
)

// On is an event that moves a connection from one phase to another.
type On uint8

// The events that move a connection on, or end it.
const (
	Negotiates  On = iota // PROPOSAL was sent or read
	Completes             // ACCEPT was read: the application is handed over
	Carries               // CONFIRM, or the raw relay begins
	Ends                  // the first of both directions has ended
	Over                  // both directions have ended in order
	RawOver               // FIN has gone both ways
	Aborts                // a reset by either side, or a failure of what carries
	Refuses               // the handshake gives up
	RefusesMute           // the same, and no packet may leave
	Declines              // the handshake leaves the connection to the kernels
	DeclinesMute
	Releases // client: the connection goes back to its kernel
	Replaces // the tuple belongs to a newer connection
	GoesNative
	Vanishes // server: no wire leg ever came
	Cancels  // server: the gateway ends before the wire leg comes
	Panics   // a panic in the work for it
)

var onNames = [...]string{
	"negotiates", "completes", "carries", "ends", "over", "raw over", "aborts", "refuses", "refuses mute", "declines",
	"declines mute", "releases", "replaces", "goes native", "vanishes", "cancels", "panics",
}

// String returns the event's name in the diagram.
func (o On) String() string { return onNames[o] }

// Transition is one row of the table.
type Transition struct {
	On   On
	From phases
	To   Phase
	// Reason is the reason of the end if its cause gives none.
	Reason negotiate.Reason
	// Ending says what happens to each part; nil: the connection lives on.
	Ending *Ending
}

// Ending says what the end does with each part of a connection. Every connection ends by exactly one of them, once.
type Ending struct {
	App   AppEnd
	Wire  WireEnd
	Entry EntryEnd
	// Anew means that a SYN on the tuple is a new connection from here on: the entry becomes dead before anything else
	// ends, and the flow leaves the table.
	Anew bool
	// End is the outcome in the record that is kept; empty if it is recorded elsewhere.
	End report.End
	// FellBack says on which sides the connection counts as native from here on.
	FellBack FallbackOf
	// Tell means that the peer is told the reason, if that is possible immediately.
	Tell bool
}

// AppEnd is how the application sees the end.
type AppEnd uint8

// How the application sees the end.
const (
	AppClean   AppEnd = iota // no reset: what was written is delivered
	AppReset                 // as a reset
	AppDrained               // as a reset, after it has been given what has arrived
)

// WireEnd is the last thing done to the wire leg.
type WireEnd uint8

// The last thing done to the wire leg.
const (
	WireReset  WireEnd = iota
	WireForget         // no packet may leave
	WireClose          // written bytes are delivered, then a FIN
)

// EntryEnd is the last thing done to the steering.
type EntryEnd uint8

// The last thing done to the steering.
const (
	EntryKept    EntryEnd = iota
	EntryDead             // swallows late segments until the sweep removes it
	EntryRelease          // the SYN goes out again without the option
)

// FallbackOf says on which sides an ending counts as a fallback.
type FallbackOf uint8

// On which sides an ending counts as a fallback.
const (
	FallbackNever  FallbackOf = iota
	FallbackServer            // the client's gateway falls back
	FallbackBoth
)

// counts reports whether the ending counts as a fallback on a side.
func (b FallbackOf) counts(side report.Side) bool {
	return b == FallbackBoth || b == FallbackServer && side == report.SideServer
}

// transitions has all transitions: what is not here does not happen.
//
// The entry of a refused connection stays, as dead: a bare SYN that follows the reset may already be on its way to
// netstack, and needs the entry to fall back.
var transitions = [...]Transition{
	{On: Negotiates, From: in(Accepted), To: Negotiating},
	{On: Completes, From: in(Negotiating), To: Completing}, // client
	{On: Carries, From: handshakes, To: Carrying},
	{On: Ends, From: in(Carrying), To: Closing},

	{On: Over, From: carried, To: Closed, Ending: &Ending{Anew: true, End: report.EndClosed}},
	{On: RawOver, From: carried, To: Closed, Ending: &Ending{Wire: WireClose, Entry: EntryDead, End: report.EndClosed}},
	{On: Aborts, From: anyPhase, To: Aborted, Ending: &Ending{App: AppDrained, Anew: true, End: report.EndAborted, Tell: true}},
	{On: Refuses, From: anyPhase, To: Aborted, Ending: &Ending{App: AppReset, Entry: EntryDead, End: report.EndAborted, FellBack: FallbackServer}},
	{On: RefusesMute, From: anyPhase, To: Aborted, Ending: &Ending{App: AppReset, Wire: WireForget, Entry: EntryDead, End: report.EndAborted, FellBack: FallbackServer}},
	{On: Declines, From: anyPhase, To: Released, Ending: &Ending{App: AppReset, Entry: EntryDead, End: report.EndNative, FellBack: FallbackBoth}},
	{On: DeclinesMute, From: anyPhase, To: Released, Ending: &Ending{App: AppReset, Wire: WireForget, Entry: EntryDead, End: report.EndNative, FellBack: FallbackBoth}},
	{On: Releases, From: anyPhase, To: Released, Ending: &Ending{App: AppReset, Entry: EntryRelease, End: report.EndNative, FellBack: FallbackBoth}},
	{On: Replaces, From: handshakes, To: Released, Reason: negotiate.ReasonClientGone, Ending: &Ending{App: AppReset, Wire: WireForget, End: report.EndNative, FellBack: FallbackBoth}},
	{On: Replaces, From: carried, To: Aborted, Reason: negotiate.ReasonClientGone, Ending: &Ending{App: AppReset, Wire: WireForget, End: report.EndAborted}},
	{On: GoesNative, From: anyPhase, To: Released, Ending: &Ending{App: AppReset, Wire: WireForget}},
	{On: Vanishes, From: anyPhase, To: Released, Ending: &Ending{Wire: WireForget, End: report.EndNative, FellBack: FallbackBoth}},
	{On: Cancels, From: handshakes, To: Released, Ending: &Ending{Wire: WireForget, Entry: EntryDead, End: report.EndNative, FellBack: FallbackBoth}},
	{On: Panics, From: handshakes, To: Aborted, Reason: negotiate.ReasonInternalError, Ending: &Ending{App: AppReset, Anew: true, End: report.EndAborted, FellBack: FallbackBoth, Tell: true}},
	{On: Panics, From: carried, To: Aborted, Reason: negotiate.ReasonInternalError, Ending: &Ending{App: AppReset, Anew: true, End: report.EndAborted, Tell: true}},
}

// transition returns the row for an event in a phase, nil if it is not expected there.
func transition(on On, from Phase) *Transition {
	for i := range transitions {
		if t := &transitions[i]; t.On == on && t.From.has(from) {
			return t
		}
	}
	return nil
}

// Phase is a phase in the life of a connection (docs/ARCHITECTURE.md "Life of a connection"). Only the programs know
// Offered and Native: a connection that stays native never becomes a flow of this process.
type Phase uint8

// The phases, in the order in which a connection can pass through them.
const (
	Offered Phase = iota
	Accepted
	Negotiating
	Completing
	Carrying
	Closing
	Closed
	Native
	Released
	Aborted
	Dead
)

var phaseNames = [...]string{
	"offered", "accepted", "negotiating", "completing", "carrying", "closing",
	"closed", "native", "released", "aborted", "dead",
}

// String returns the name in docs/ARCHITECTURE.md "Names".
func (p Phase) String() string {
	if int(p) < len(phaseNames) {
		return phaseNames[p]
	}
	return fmt.Sprintf("phase(%d)", uint8(p))
}

// Final reports whether only the record of the connection remains.
func (p Phase) Final() bool {
	switch p {
	case Closed, Released, Aborted, Native, Dead:
		return true
	default:
		return false
	}
}

// phases is a set of phases.
type phases uint16

func in(list ...Phase) (set phases) {
	for _, p := range list {
		set |= 1 << p
	}
	return set
}

func (s phases) has(p Phase) bool { return s&(1<<p) != 0 }

// The sets used by the table.
var (
	handshakes = in(Accepted, Negotiating, Completing)
	carried    = in(Carrying, Closing)
	anyPhase   = handshakes | carried
)
