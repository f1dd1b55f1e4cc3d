package netstack

// legState says what moves the bytes of a wire leg, or how it has ended. It decides both what becomes of the packets of
// a tuple and what a call of the owner may do.
//
// It changes only by the rows of legTransitions, under Conn.mu, and can be read without that lock. TestLegTable
// compares this list with the rows:
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

// The states of a wire leg. Comparisons depend on their order.
const (
	legMini    legState = iota // a mini socket moves the bytes
	legLeading                 // gVisor is led to the mini socket's position; what arrives or is written waits
	legShut                    // as leading, and the owner has closed the leg
	legSplit                   // an endpoint moves the bytes, but the mini socket still has unread ones
	legWhole                   // the endpoint has all bytes
	legClosing                 // the owner has closed the leg; the endpoint delivers what was written, and a FIN
	legBroken                  // ended without an endpoint; the owner has not ended it yet
	legOver                    // ended; no packet leaves any more
	legReset                   // ended by a reset, which may be repeated for the peer
)

// alive reports whether packets of the tuple belong to this leg.
func (l legState) alive() bool { return l < legOver }

// led reports whether Conn.grow is in progress.
func (l legState) led() bool { return l == legLeading || l == legShut }

// endpoint reports whether an endpoint receives what arrives.
func (l legState) endpoint() bool { return l >= legSplit && l <= legClosing }

// legEvent is what moves a wire leg from one state to another.
type legEvent uint8

const (
	legGrows     legEvent = iota // the leg needs more than a mini socket
	legLed                       // gVisor is established and has everything that waited
	legNotLed                    // gVisor will not be established
	legRead                      // nothing is left in the mini socket
	legBroke                     // the peer has reset the mini socket, or has been silent too long
	legClose                     // Conn.Close
	legCut                       // Conn.Close with unread bytes
	legDelivered                 // gVisor is done with a closed leg
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

// legTransitions are all the transitions; no others happen.
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

// state returns the current state of the wire leg. Without Conn.mu held it may be outdated immediately, except that a
// leg that is not alive stays so.
func (f *flow) state() legState { return legState(f.leg.Load()) }

func (f *flow) alive() bool { return f.state().alive() }

// step makes the transition for an event, and reports whether there is one. The caller holds Conn.mu.
func (f *flow) step(on legEvent) bool {
	to, ok := f.state().next(on)
	if ok {
		f.leg.Store(uint32(to))
	}
	return ok
}
