package conn

import (
	"time"

	"github.com/smcgw/smcgw/gateway/internal/carrier"
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
	Acknowledged(written uint64) bool
	Ask(heard func())
	Over() bool
	MarkCarrying()
	QuickACK()
	CloseWrite() error
	Close() error
	Abort()
	Forget()
}

// legAsk is how often a leg that carries bytes is asked for a sign of life, so that a
// gateway that has died is noticed by its kernel's reset. The leg waits for an answer for
// carrier.LegPatience.
const legAsk = 2 * time.Second

// askLeg begins to ask.
func askLeg(wire wireLeg) { _ = wire.SetKeepalive(legAsk, legAsk, int(carrier.LegPatience/legAsk)) }

var _ wireLeg = (*netstack.Conn)(nil)
