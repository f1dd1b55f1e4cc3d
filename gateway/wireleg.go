package gateway

import (
	"time"

	"github.com/smcgw/smcgw/netstack"
)

// wireLeg is what a flow needs of its connection to the peer's gateway: a
// *netstack.Conn.
type wireLeg interface {
	Read(p []byte) (int, error)
	Write(p []byte) (int, error)
	SetNotify(fn func())
	SetKeepalive(idle, interval time.Duration, count int) error
	SetUserTimeout(d time.Duration) error
	Vitals() (written, heard uint64)
	Ask(heard func())
	Over() bool
	MarkCarrying()
	QuickACK()
	CloseWrite() error
	Close() error
	Abort()
	Forget()
}

// A leg that carries bytes is asked for a sign of life every legAsk, so that a
// gateway that has died is noticed by its kernel's reset. A network that answers
// nothing is no sign of death: TCP waits there, and so does the leg, for as long as
// the kernel's own keepalive does by default. So does the one that asks for all
// flows with a peer (vigil).
const (
	legAsk      = 2 * time.Second
	legPatience = 2 * time.Hour
)

// askLeg begins to ask.
func askLeg(wire wireLeg) { _ = wire.SetKeepalive(legAsk, legAsk, int(legPatience/legAsk)) }

var _ wireLeg = (*netstack.Conn)(nil)
