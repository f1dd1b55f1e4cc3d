package gateway

import (
	"slices"

	"github.com/smcgw/smcgw/gateway/admin"
	"github.com/smcgw/smcgw/gateway/config"
)

// stateMoves are the steps of a flow that lives. Those that end it are endings; they
// lead from each of these states.
var stateMoves = [...]struct {
	from State
	to   []State
}{
	{StateAccepted, []State{StateNegotiating, StateCarrying}},
	{StateNegotiating, []State{StateCompleting, StateCarrying}}, // the server's proof, or its raw relay
	{StateCompleting, []State{StateCarrying}},
	{StateCarrying, []State{StateClosing}},
}

// leadsTo reports whether a flow can go from one state to another.
func (s State) leadsTo(next State) bool {
	if next.final() {
		return !s.final()
	}
	for _, m := range stateMoves {
		if m.from == s {
			return slices.Contains(m.to, next)
		}
	}
	return false
}

// cause is what ends a flow.
type cause uint8

const (
	causeClosed      cause = iota // both directions have ended in order
	causeRawClosed                // FIN went through both ways
	causeAborted                  // a reset of either side, or what carries has failed
	causeRefused                  // the handshake gives up
	causeRefusedMute              // so it does, and no packet may leave
	causeDeclined                 // the handshake leaves the connection to the kernels
	causeDeclinedMute
	causeReleased   // client: the connection goes back to its kernel
	causeReplaced   // the tuple belongs to a newer connection
	causeBegunAnew  // so it does, before anything was carried
	causeGivenBack  // the programs have given it to the kernel
	causeVanished   // server: no wire leg ever came
	causeHalfOpen   // server: the gateway ends before the wire leg comes
	causeFailed     // a panic in its work
	causeFailedSoon // before anything was carried
	causes
)

// ending says what teardown does with each part of a flow. Whatever the way a
// flow ends, it ends through teardown, once.
type ending struct {
	name  string
	state State
	app   appEnd
	wire  wireEnd
	entry entryEnd
	// anew: a SYN on the tuple is a new connection from here on. The entry is dead
	// before anything else ends, and the flow leaves the table.
	anew bool
	end  admin.End // which record is kept; none: it is recorded elsewhere

	fellBack fallbackOf // whose connections are counted as native from here on
	tell     bool       // the peer learns the reason, if that can be said at once
}

// appEnd is how the application sees the end.
type appEnd uint8

const (
	appClean   appEnd = iota // as what was planned
	appReset                 // as a reset
	appDrained               // as a reset behind what has arrived for it
)

// wireEnd is the last thing done to the wire leg.
type wireEnd uint8

const (
	wireReset  wireEnd = iota
	wireForget         // no packet may leave
	wireClose          // what was written is delivered, and a FIN
)

// entryEnd is the last thing done to the steering.
type entryEnd uint8

const (
	entryKept    entryEnd = iota
	entryDead             // it swallows late segments; the sweep removes it
	entryRelease          // the bare SYN goes out
)

// fallbackOf is on which sides an ending counts as a fallback.
type fallbackOf uint8

const (
	nobodys fallbackOf = iota
	servers            // a client's gateway gives the connection back
	everybodys
)

func (b fallbackOf) counts(side config.Side) bool {
	return b == everybodys || b == servers && side == config.SideServer
}

// endings is every way in which a flow ends.
//
// The entry of a refused one stays as dead: a bare SYN behind the reset may be on its
// way to netstack already, and returnSYN needs the entry to give it back.
var endings = [causes]ending{
	causeClosed:       {name: "closed", state: StateClosed, anew: true, end: admin.EndClosed},
	causeRawClosed:    {name: "raw closed", state: StateClosed, wire: wireClose, entry: entryDead, end: admin.EndClosed},
	causeAborted:      {name: "aborted", state: StateAborted, app: appDrained, anew: true, end: admin.EndAborted, tell: true},
	causeRefused:      {name: "refused", state: StateAborted, app: appReset, entry: entryDead, end: admin.EndAborted, fellBack: servers},
	causeRefusedMute:  {name: "refused mute", state: StateAborted, app: appReset, wire: wireForget, entry: entryDead, end: admin.EndAborted, fellBack: servers},
	causeDeclined:     {name: "declined", state: StateReleased, app: appReset, entry: entryDead, end: admin.EndNative, fellBack: everybodys},
	causeDeclinedMute: {name: "declined mute", state: StateReleased, app: appReset, wire: wireForget, entry: entryDead, end: admin.EndNative, fellBack: everybodys},
	causeReleased:     {name: "released", state: StateReleased, app: appReset, entry: entryRelease, end: admin.EndNative, fellBack: everybodys},
	causeReplaced:     {name: "replaced", state: StateAborted, app: appReset, wire: wireForget, end: admin.EndAborted},
	causeBegunAnew:    {name: "begun anew", state: StateReleased, app: appReset, wire: wireForget, end: admin.EndNative, fellBack: everybodys},
	causeGivenBack:    {name: "given back", state: StateReleased, app: appReset, wire: wireForget},
	causeVanished:     {name: "vanished", state: StateReleased, wire: wireForget, end: admin.EndNative, fellBack: everybodys},
	causeHalfOpen:     {name: "half open", state: StateReleased, wire: wireForget, entry: entryDead, end: admin.EndNative, fellBack: everybodys},
	causeFailed:       {name: "failed", state: StateAborted, app: appReset, anew: true, end: admin.EndAborted, tell: true},
	causeFailedSoon:   {name: "failed soon", state: StateAborted, app: appReset, anew: true, end: admin.EndAborted, tell: true, fellBack: everybodys},
}
