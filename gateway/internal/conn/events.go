package conn

import (
	"slices"

	"github.com/smcgw/smcgw/gateway/internal/carrier"
	life "github.com/smcgw/smcgw/gateway/internal/flow"
	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/negotiate"
)

// Replaced ends the connection because a newer one has its tuple.
func (f *Flow) Replaced() {
	f.Share.End()
	f.post(f.replaced)
}

// GivenBack reports that the programs have left the connection to the kernel: because the
// gateway was late (late), or because a new connection has the tuple.
func (f *Flow) GivenBack(late bool) { f.post(func() { f.do(f.core.GivenBack(late)) }) }

// Cancel ends the connection because the gateway is ending or must not carry anything. A
// connection in its handshake falls back; one that is carried is reset.
func (f *Flow) Cancel(r negotiate.Reason) { f.post(func() { f.drain(r) }) }

// Demote moves the connection to the relay because of cause.
func (f *Flow) Demote(cause string) { f.post(func() { f.do(f.core.Leave(cause)) }) }

// LeaveDevice stops the use of links of this kind for which uses returns true. A connection
// carried by such a link continues over the relay. A handshake may finish first, within its
// own deadlines. With hard, what still uses such a link falls back or is reset.
func (f *Flow) LeaveDevice(kind negotiate.CarrierKind, uses func(*carrier.Link) bool, hard bool) {
	if by := f.Carrier(); by != report.CarrierNone && by != report.Carrier(kind.String()) {
		return
	}
	f.post(func() {
		switch {
		case !slices.ContainsFunc(f.carries, func(c *carry) bool { return c.Kind == kind && uses(c.Link) }):
		case hard:
			f.drain(whyLeft(kind))
		case f.core.Phase() >= life.Carrying:
			f.do(f.core.Leave(whyLeft(kind).String()))
		}
	})
}

// whyLeft returns the reason for leaving a device: soft is left when another gateway takes
// over, an adapter when it, its port or one of its addresses disappears.
func whyLeft(kind negotiate.CarrierKind) negotiate.Reason {
	if kind == negotiate.CarrierHW || kind == negotiate.CarrierIB {
		return negotiate.ReasonDeviceFailed
	}
	return negotiate.ReasonDrained
}
