package conn

import (
	"time"

	"github.com/smcgw/smcgw/gateway/internal/carrier"
	"github.com/smcgw/smcgw/netstack"
)

// wireLeg is what a flow needs from its connection to the peer gateway; *netstack.Conn
// implements it.
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

// legAsk is how often a leg that carries bytes sends a keepalive probe, so that a peer
// gateway that has died is noticed by the reset of its kernel. The leg waits
// carrier.LegPatience for an answer.
const legAsk = 2 * time.Second

// askLeg starts the probes.
func askLeg(wire wireLeg) { _ = wire.SetKeepalive(legAsk, legAsk, int(carrier.LegPatience/legAsk)) }

var _ wireLeg = (*netstack.Conn)(nil)
