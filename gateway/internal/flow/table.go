package flow

import (
	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/negotiate"
)

// On is what moves a connection from one phase to another.
type On uint8

// What moves a connection on, and what ends it.
const (
	Negotiates  On = iota // PROPOSAL was sent or read
	Completes             // ACCEPT was read: the application is handed over
	Carries               // CONFIRM, or the raw relay begins
	Ends                  // the first of both directions has ended
	Over                  // both directions have ended in order
	RawOver               // FIN went through both ways
	Aborts                // a reset of either side, or what carries has failed
	Refuses               // the handshake gives up
	RefusesMute           // so it does, and no packet may leave
	Declines              // the handshake leaves the connection to the kernels
	DeclinesMute
	Releases // client: the connection goes back to its kernel
	Replaces // the tuple belongs to a newer connection
	GoesNative
	Vanishes // server: no wire leg ever came
	Cancels  // server: the gateway ends before the wire leg comes
	Panics   // a panic in its work
)

var onNames = [...]string{
	"negotiates", "completes", "carries", "ends", "over", "raw over", "aborts", "refuses", "refuses mute", "declines",
	"declines mute", "releases", "replaces", "goes native", "vanishes", "cancels", "panics",
}

// String returns the name, as the diagram has it.
func (o On) String() string { return onNames[o] }

// Transition is one row of the table.
type Transition struct {
	On   On
	From phases
	To   Phase
	// Reason is what the end is put down to where its cause names nothing.
	Reason negotiate.Reason
	// Ending says what becomes of each part; nil: the connection lives on.
	Ending *Ending
}

// Ending says what the end does with each part of a connection. However a
// connection ends, it ends by one of them, once.
type Ending struct {
	App   AppEnd
	Wire  WireEnd
	Entry EntryEnd
	// Anew: a SYN on the tuple is a new connection from here on. The entry is dead
	// before anything else ends, and the flow leaves the table.
	Anew bool
	// End is the record that is kept; empty: it is recorded elsewhere.
	End report.End
	// FellBack is on which sides the connection is counted as native from here on.
	FellBack FallbackOf
	// Tell: the peer learns the reason, if that can be said at once.
	Tell bool
}

// AppEnd is how the application sees the end.
type AppEnd uint8

// How the application sees the end.
const (
	AppClean   AppEnd = iota // as what was planned
	AppReset                 // as a reset
	AppDrained               // as a reset after what has arrived for it
)

// WireEnd is the last thing done to the wire leg.
type WireEnd uint8

// The last thing done to the wire leg.
const (
	WireReset  WireEnd = iota
	WireForget         // no packet may leave
	WireClose          // what was written is delivered, and a FIN
)

// EntryEnd is the last thing done to the steering.
type EntryEnd uint8

// The last thing done to the steering.
const (
	EntryKept    EntryEnd = iota
	EntryDead             // it swallows late segments; the sweep removes it
	EntryRelease          // the bare SYN goes out
)

// FallbackOf is on which sides an ending counts as a fallback.
type FallbackOf uint8

// On which sides an ending counts as a fallback.
const (
	FallbackNever  FallbackOf = iota
	FallbackServer            // a client's gateway gives the connection back
	FallbackBoth
)

// counts reports whether it does on a side.
func (b FallbackOf) counts(side report.Side) bool {
	return b == FallbackBoth || b == FallbackServer && side == report.SideServer
}

// transitions are all there are: what is not here does not happen.
//
// The entry of a refused connection stays as dead: a bare SYN after the reset may
// be on its way to netstack already, and needs the entry to fall back.
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
