package flow

import "fmt"

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
