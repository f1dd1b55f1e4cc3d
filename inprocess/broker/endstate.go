package broker

import "fmt"

// endState is the state of one end that asked.
type endState uint8

const (
	endNew      endState = iota
	endWaiting           // for the other end to ask
	endPairing           // matched; the memory is made and sent
	endPromoted          // the memory is queued to both
	endGone
	endStates
)

var endNames = [endStates]string{"new", "waiting", "pairing", "promoted", "gone"}

func (s endState) String() string { return endNames[s] }

// endEvent is what happens to an end.
type endEvent uint8

const (
	evWait     endEvent = iota // no other end matches yet
	evMatch                    // matched with another end
	evGranted                  // the memory is queued to both
	evUndone                   // the memory could not be queued to both
	evRefused                  // denied: at once, after waiting too long, or by the switch
	evReplaced                 // by a later question for the same socket or entry
	evClosed                   // its process says that it has ended
	evLeft                     // its process has left
	endEvents
)

var eventNames = [endEvents]string{"wait", "match", "granted", "undone", "refused", "replaced", "closed", "left"}

func (e endEvent) String() string { return eventNames[e] }

// endTable has the next state for each state and event. What is missing cannot happen.
var endTable = [endStates]map[endEvent]endState{
	endNew:      {evWait: endWaiting, evMatch: endPairing, evRefused: endGone},
	endWaiting:  {evMatch: endPairing, evRefused: endGone, evReplaced: endGone, evClosed: endGone, evLeft: endGone},
	endPairing:  {evGranted: endPromoted, evUndone: endGone, evReplaced: endGone, evClosed: endGone, evLeft: endGone},
	endPromoted: {evReplaced: endGone, evClosed: endGone, evLeft: endGone},
	endGone:     {},
}

// next returns the state after an event. It panics on an event that cannot happen; the core checks first.
func (s endState) next(e endEvent) endState {
	to, ok := endTable[s][e]
	if !ok {
		panic(fmt.Sprintf("end %s: %s", s, e))
	}
	return to
}
