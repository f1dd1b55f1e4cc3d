package netstack

// legState is what moves the bytes of a wire leg, or how it has ended. It is the one answer to
// both: what the packets of a tuple ask of its flow, and what a call of its owner may do.
//
// It changes by the rows of legTransitions only, under Conn.mu, and can be read without it.
// TestLegTable compares this with them:
//
//	STATE     EVENT          NEXT
//	mini      grows       ─► leading
//	leading   led         ─► split
//	shut      led         ─► closing
//	split     read        ─► whole
//	mini      broke       ─► broken
//	leading   not led     ─► broken
//	shut      not led     ─► over
//	mini      close       ─► shut
//	leading   close       ─► shut
//	split     close       ─► closing
//	whole     close       ─► closing
//	broken    close       ─► over
//	closing   delivered   ─► over
//	mini      cut         ─► over
//	leading   cut         ─► over
//	split     cut         ─► over
//	alive     forget      ─► over
//	alive     abort       ─► reset
type legState uint32

// The states of a wire leg. The order is that of their comparisons.
const (
	legMini    legState = iota // a mini socket moves the bytes
	legLeading                 // gVisor is led to where that stands: what comes, and what is written, waits
	legShut                    // so it is, and the owner has closed the leg
	legSplit                   // an endpoint moves them, but for some that the mini socket took and nothing has read
	legWhole                   // the endpoint has everything
	legClosing                 // the owner has closed the leg: the endpoint delivers what was written, and a FIN
	legBroken                  // it ended without an endpoint, and the owner has not ended it yet
	legOver                    // it is over: not a packet leaves on it
	legReset                   // so it is, and the peer was told by a reset, which it may be told again
)

// alive reports whether packets of the tuple are those of this leg.
func (l legState) alive() bool { return l < legOver }

// led reports whether Conn.grow is at it.
func (l legState) led() bool { return l == legLeading || l == legShut }

// endpoint reports whether an endpoint takes what comes.
func (l legState) endpoint() bool { return l >= legSplit && l <= legClosing }

// legEvent is what moves a wire leg from one state to another.
type legEvent uint8

const (
	legGrows     legEvent = iota // it takes more than a mini socket
	legLed                       // gVisor is established, and has all that has waited
	legNotLed                    // it will not be
	legRead                      // nothing is left in the mini socket
	legBroke                     // the peer has reset the mini socket, or was silent for too long
	legClose                     // Conn.Close
	legCut                       // Conn.Close, with bytes that were not read
	legDelivered                 // gVisor is done with what was closed
	legForget                    // Conn.Forget
	legAbort                     // Conn.Abort
)

// legStates is a set of states.
type legStates uint16

const legAlive legStates = 1<<legOver - 1

func inLeg(states ...legState) (set legStates) {
	for _, l := range states {
		set |= 1 << l
	}
	return set
}

func (s legStates) has(l legState) bool { return s>>l&1 != 0 }

// legTransitions are all there are: what is not here does not happen.
var legTransitions = [...]struct {
	on   legEvent
	from legStates
	to   legState
}{
	{legGrows, inLeg(legMini), legLeading},
	{legLed, inLeg(legLeading), legSplit},
	{legLed, inLeg(legShut), legClosing},
	{legRead, inLeg(legSplit), legWhole},
	{legBroke, inLeg(legMini), legBroken},
	{legNotLed, inLeg(legLeading), legBroken},
	{legNotLed, inLeg(legShut), legOver},
	{legClose, inLeg(legMini, legLeading), legShut},
	{legClose, inLeg(legSplit, legWhole), legClosing},
	{legClose, inLeg(legBroken), legOver},
	{legDelivered, inLeg(legClosing), legOver},
	{legCut, inLeg(legMini, legLeading, legSplit), legOver},
	{legForget, legAlive, legOver},
	{legAbort, legAlive, legReset},
}

// next returns the state after an event, and whether there is a row for it.
func (l legState) next(on legEvent) (to legState, ok bool) {
	for i := range legTransitions {
		if t := &legTransitions[i]; t.on == on && t.from.has(l) {
			return t.to, true
		}
	}
	return l, false
}

// state is where the wire leg stands now. Without Conn.mu it may be another one at once, but for
// those in which it is not alive.
func (f *flow) state() legState { return legState(f.leg.Load()) }

func (f *flow) alive() bool { return f.state().alive() }

// step takes the row for an event, and reports whether there is one. The caller holds Conn.mu.
func (f *flow) step(on legEvent) bool {
	to, ok := f.state().next(on)
	if ok {
		f.leg.Store(uint32(to))
	}
	return ok
}
