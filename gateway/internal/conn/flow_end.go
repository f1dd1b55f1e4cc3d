package conn

import (
	"time"

	"github.com/smcgw/smcgw/ebpf"
	life "github.com/smcgw/smcgw/gateway/internal/flow"
	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/negotiate"
)

// end ends the flow. The app leg is closed before the entry is changed, because its reset
// still needs the steering (a dead entry still steers it). In a handshake it is also closed
// before the wire leg: the client's bare SYN follows the end of the wire leg immediately and
// must not meet an application that is still connected to this gateway. For the same reason a
// pending dial ends first. The parts are ended by a posted function, after the work in
// progress on them.
func (f *Flow) end(a *life.Action) {
	f.env.Work.Add(1)
	p := parts{f.hs, f.leg, f.ctl, f.carries, f.relay, f.raw}
	e, word := a.Ending, a.Word
	defer f.post(func() { // even if what follows panics
		defer f.finish(e)
		p.end(word)
	})
	f.remember(a.Verdict)
	close(f.gone)
	switch {
	case e.App != life.AppDrained:
	case f.relay != nil:
		f.post(f.relay.lastWords)
	case f.picked != nil:
		f.post(f.picked.lastWords)
	}
}

// parts are the parts of a flow on its shard. Each may be missing.
type parts struct {
	hs      *negotiator
	leg     *appLeg
	ctl     *wireControl
	carries []*carry
	relay   *relay
	raw     *rawRelay
}

// end closes all parts, even if closing one panics. The peer is told word if that can be sent
// at once.
func (p *parts) end(word negotiate.Reason) {
	defer closeAll(p.carries)
	if p.raw != nil {
		defer p.raw.close()
	}
	if p.relay != nil {
		defer p.relay.close()
	}
	if p.ctl != nil {
		defer p.ctl.close(word)
	}
	if p.hs != nil {
		p.hs.leave() // cancels a pending dial
	}
}

// finish releases the flow's resources on the host, after its parts.
func (f *Flow) finish(e *life.Ending) {
	defer f.env.Work.Done()
	leg := f.leg
	// The client starts over on the tuple, so everything else must be done before it can
	// learn that the tuple is free. The client of a server learns that from the wire leg, and
	// its SYN must not meet an application that is still connected to this gateway.
	wireFirst := e.Anew && f.Side == report.SideClient
	if e.Anew {
		f.entryDead()
		if wireFirst {
			f.endWire(e.Wire)
		}
		f.env.Unlink(f)
	}
	f.endLeg(leg, e.App != life.AppClean)
	if f.core.Phase() == life.Closed && f.Side == report.SideServer {
		f.forgetTimeWait()
	}
	if !wireFirst {
		f.endWire(e.Wire)
	}
	f.endEntry(e.Entry)
	f.bury(e.End)
}

func (f *Flow) endLeg(leg *appLeg, reset bool) {
	switch {
	case leg == nil:
	case reset:
		leg.reset()
	default:
		leg.clean()
	}
}

// closeCarries closes the queue pairs on their shard and then runs done. All queue pairs of a
// flow belong to one shard.
func (f *Flow) closeCarries(carries []*carry, done func()) {
	if len(carries) == 0 {
		done()
		return
	}
	s := carries[0].Shard
	s.Post(func() {
		s.WorksFor(f)
		defer done()
		closeAll(carries)
	})
}

// closeAll closes all of them, even if closing one panics.
func closeAll(carries []*carry) {
	for _, c := range carries {
		defer c.close()
	}
}

// bury moves the flow from the tables to the history.
func (f *Flow) bury(end report.End) {
	f.env.Unlink(f)
	info := f.Info(time.Now())
	info.End, info.EndedAt = end, time.Now()
	f.env.Counters.Ended(f, info)
	f.env.Lines.Ended(info)
	switch end {
	case "": // recorded elsewhere
	case report.EndNative:
		f.env.Native.Add(info)
	default:
		f.env.Closed.Add(info)
	}
	f.debug("connection ended", "end", string(end), "reason", info.Reason, "decided_by", info.DecidedBy)
	f.buried.Store(true)
	after := f.after
	f.after = nil
	if f.give != nil {
		after = append(after, f.give)
	}
	for _, fn := range after {
		fn()
	}
}

// whenGone runs fn after the flow has left the tables, or at once if it already has. It must
// be called on the shard.
func (f *Flow) whenGone(fn func()) {
	if f.buried.Load() {
		fn()
	} else {
		f.after = append(f.after, fn)
	}
}

// dropLocal closes the app leg and the queue pairs of a server that declines; the wire leg
// stays so that the client can read the reason.
func (f *Flow) dropLocal() {
	carries, leg := f.carries, f.leg
	f.carries, f.leg = nil, nil
	f.closeCarries(carries, func() { f.endLeg(leg, true) })
	_ = f.env.Steering.Transition(ebpf.Tuple(f.Tuple), f.ISN, ebpf.StateWire, ebpf.StateServing)
}

// forgetTimeWait allows the client's next connection on the tuple to be carried too.
func (f *Flow) forgetTimeWait() {
	if _, err := f.env.Steering.ForgetTimeWait(ebpf.Tuple(f.Tuple)); err != nil {
		f.debug("time-wait of the application", "error", err)
	}
}

func (f *Flow) endWire(how life.WireEnd) {
	switch {
	case f.wire == nil:
	case how == life.WireReset:
		f.wire.Abort()
	case how == life.WireForget:
		f.wire.Forget()
	case how == life.WireClose:
		_ = f.wire.Close()
	}
}

func (f *Flow) endEntry(how life.EntryEnd) {
	switch how {
	case life.EntryKept:
	case life.EntryDead:
		f.entryDead()
	case life.EntryRelease:
		f.env.Release(f.Tuple, f.ISN, f.syn)
	}
}

// entryDead leaves an entry that swallows late segments; the sweep removes it.
func (f *Flow) entryDead() {
	_ = f.env.Steering.Transition(ebpf.Tuple(f.Tuple), f.ISN, ebpf.StateDead, ownedStates[:]...)
}

// ownedStates are the states in which the gateway owns the wire leg.
var ownedStates = [...]ebpf.State{
	ebpf.StateNegotiating, ebpf.StateCompleting, ebpf.StateCarrying,
	ebpf.StateWire, ebpf.StateServing, ebpf.StateRaw,
}
