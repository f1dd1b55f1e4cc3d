package conn

import (
	"slices"

	"github.com/smcgw/smcgw/gateway/internal/carrier"
	life "github.com/smcgw/smcgw/gateway/internal/flow"
	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/negotiate"
)

// Replaced ends the connection because its tuple belongs to a newer one.
func (f *Flow) Replaced() {
	f.Share.End()
	f.post(f.replaced)
}

// GivenBack tells that the programs have left the connection to the kernel: while the
// gateway was late (late), or because the tuple has a new one.
func (f *Flow) GivenBack(late bool) { f.post(func() { f.do(f.core.GivenBack(late)) }) }

// Cancel ends the connection because the gateway does, or is to carry nothing: a handshake
// gives it back, what is carried is reset.
func (f *Flow) Cancel(r negotiate.Reason) { f.post(func() { f.drain(r) }) }

// Demote has the connection go on over the relay, because of cause.
func (f *Flow) Demote(cause string) { f.post(func() { f.do(f.core.Leave(cause)) }) }

// LeaveDevice ends the use of the links of a kind that uses is true of: a connection that
// such a link carries goes on over the relay, a handshake comes to its end first, within
// its own time. hard: what is left falls back or is reset.
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

// whyLeft is why a connection leaves a device. Soft is left to the gateway that takes
// over, an adapter when it, its port or an address of it goes.
func whyLeft(kind negotiate.CarrierKind) negotiate.Reason {
	if kind == negotiate.CarrierHW || kind == negotiate.CarrierIB {
		return negotiate.ReasonDeviceFailed
	}
	return negotiate.ReasonDrained
}
