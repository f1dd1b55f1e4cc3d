package broker

import "fmt"

// endState is the life of one asking end.
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
	evWait     endEvent = iota // no end fits
	evMatch                    // with another end
	evGranted                  // the memory is queued to both
	evUndone                   // it could not be
	evRefused                  // asked, waited too long, or the switch
	evReplaced                 // by a later question of the same socket or entry
	evClosed                   // its process says so
	evLeft                     // its process has gone
	endEvents
)

var eventNames = [endEvents]string{"wait", "match", "granted", "undone", "refused", "replaced", "closed", "left"}

func (e endEvent) String() string { return eventNames[e] }

// endTable has the next state by state and event; what is missing cannot happen.
var endTable = [endStates]map[endEvent]endState{
	endNew:      {evWait: endWaiting, evMatch: endPairing, evRefused: endGone},
	endWaiting:  {evMatch: endPairing, evRefused: endGone, evReplaced: endGone, evClosed: endGone, evLeft: endGone},
	endPairing:  {evGranted: endPromoted, evUndone: endGone, evReplaced: endGone, evClosed: endGone, evLeft: endGone},
	endPromoted: {evReplaced: endGone, evClosed: endGone, evLeft: endGone},
	endGone:     {},
}

// next is the state after an event. It panics on one that cannot happen: the core asks first.
func (s endState) next(e endEvent) endState {
	to, ok := endTable[s][e]
	if !ok {
		panic(fmt.Sprintf("end %s: %s", s, e))
	}
	return to
}
