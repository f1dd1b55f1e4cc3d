package flow

import "fmt"

// Phase is where the life of a connection stands (docs/ARCHITECTURE.md "Life of a
// connection"). Offered and Native are known to the programs only: a connection that stays
// native never becomes a flow of this process.
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

// String returns the name, of docs/ARCHITECTURE.md "Names".
func (p Phase) String() string {
	if int(p) < len(phaseNames) {
		return phaseNames[p]
	}
	return fmt.Sprintf("phase(%d)", uint8(p))
}

// Final reports whether nothing of the connection remains but its record.
func (p Phase) Final() bool {
	switch p {
	case Closed, Released, Aborted, Native, Dead:
		return true
	default:
		return false
	}
}

// phases is a set of them.
type phases uint16

func in(list ...Phase) (set phases) {
	for _, p := range list {
		set |= 1 << p
	}
	return set
}

func (s phases) has(p Phase) bool { return s&(1<<p) != 0 }

// The sets that the table speaks of.
var (
	handshakes = in(Accepted, Negotiating, Completing)
	carried    = in(Carrying, Closing)
	anyPhase   = handshakes | carried
)
