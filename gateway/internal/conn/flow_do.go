package conn

import (
	"time"

	"github.com/smcgw/smcgw/gateway/internal/carrier"
	life "github.com/smcgw/smcgw/gateway/internal/flow"
	"github.com/smcgw/smcgw/negotiate"
)

// do executes the core's actions in order. If an action causes a new event, the core is told
// at once, and the actions of that event are executed before the next one of todo.
func (f *Flow) do(todo []life.Action) {
	f.noted()
	for i := range todo {
		f.act(&todo[i])
	}
}

// noted publishes the state of the core.
func (f *Flow) noted() {
	if p := f.core.Phase(); p != f.state() {
		if p == life.Carrying {
			f.Share.Carried()
		}
		f.phase.Store(uint32(p))
	}
	v := f.view()
	if reason, remote := f.core.Why(); reason != v.reason || remote != v.remote {
		f.show(func(v *view) { v.reason, v.remote = reason, remote })
	}
}

func (f *Flow) act(a *life.Action) {
	switch a.Do {
	case life.Queue:
		f.ctl.queue(a.Record)
	case life.Flush:
		f.ctl.flush()
	case life.Look:
		f.ctl.notify()
	case life.Pump:
		f.picked.pump()
	case life.DrainLink:
		f.picked.drain(a.Cause)
	case life.Relay:
		f.picked.leave(a.Cause)
	case life.LinkUnused:
		f.relay.from.written()
	case life.SetLinger:
		f.ctl.s.SetTimer(&f.ctl.timer, time.Now().Add(a.After))
	case life.SetPatience:
		f.picked.Shard.SetTimer(&f.picked.patience, time.Now().Add(a.After))
	case life.ProbeWire:
		_ = f.wire.SetKeepalive(a.After, a.After, int(carrier.LegPatience/a.After))
	case life.CancelHandshake:
		r, n := a.Verdict.Reason, f.hs
		n.input(func(now time.Time) []negotiate.Action { return n.hs.Cancel(now, r) })
	case life.CountFallback:
		f.countFallback(a.Verdict.Reason)
	case life.End:
		f.end(a)
	}
}

// The methods below must be called on the flow's shard.

// abort ends both legs at once: bytes in flight may be lost, as with RST, but not those
// that have arrived.
func (f *Flow) abort(r negotiate.Reason, remote bool) { f.do(f.core.Aborts(r, remote)) }

// abortVerdict aborts the flow as ordered by the handshake.
func (f *Flow) abortVerdict(a negotiate.Abort) { f.do(f.core.HandshakeAborts(a.Verdict, a.Silent)) }

// release lets a client's connection fall back to its kernel: the wire leg is reset, and
// after the RST the application's SYN is sent again without the option.
func (f *Flow) release(v negotiate.Verdict) { f.do(f.core.Releases(v)) }

// replaced ends a flow whose tuple belongs to a newer connection: no packet may be sent on
// it.
func (f *Flow) replaced() { f.do(f.core.Replaced()) }

// vanish ends a server flow that never had a wire leg.
func (f *Flow) vanish(r negotiate.Reason) { f.do(f.core.Vanishes(r)) }

// drain ends the flow because the gateway is ending or must not carry anything.
func (f *Flow) drain(r negotiate.Reason) { f.do(f.core.Cancel(r)) }

// ask sends a record to get a sign of life from the peer's TCP.
func (f *Flow) ask() {
	if f.ctl != nil {
		f.do(f.core.Ask(f.ctl.out.len() > 0))
	}
}

// countFallback counts a connection that fell back or was refused.
func (f *Flow) countFallback(r negotiate.Reason) {
	f.env.Counters.Fallback(r, f.Side)
	if r == negotiate.ReasonAuthFailed {
		f.env.Keys.NoCommonKey(f.Tuple.Remote.Addr(), f.Side)
	}
}
