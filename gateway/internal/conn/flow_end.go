package conn

import (
	"time"

	"github.com/smcgw/smcgw/ebpf"
	life "github.com/smcgw/smcgw/gateway/internal/flow"
	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/negotiate"
)

// end ends the flow. The app leg goes before the entry, since its reset
// still needs the steering; a dead entry still steers it. It also goes before
// the wire leg in handshakes: the client's bare SYN comes right after the end
// of that, and must not meet an application that is still connected to us. So a
// dial under way ends first. The parts end after what is being done with them.
func (f *Flow) end(a *life.Action) {
	f.env.Work.Add(1)
	p := parts{f.hs, f.leg, f.ctl, f.carries, f.relay, f.raw}
	e, word := a.Ending, a.Word
	defer f.post(func() { // even after a panic
		defer f.finish(e)
		p.end(word)
	})
	f.remember(a.Verdict)
	close(f.gone)
	if e.App == life.AppDrained && len(p.carries) == 1 {
		p.carries[0].Shard.Post(p.carries[0].lastWords)
	}
}

// parts are what a flow is made of on its shard. Each may be missing.
type parts struct {
	hs      *negotiator
	leg     *appLeg
	ctl     *wireControl
	carries []*carry
	relay   *relay
	raw     *rawRelay
}

// end ends them, whatever becomes of one. The peer learns the word, if it can be said
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
		p.hs.leave() // gives a dial up
	}
}

// finish ends what the flow has of the host, after its parts.
func (f *Flow) finish(e *life.Ending) {
	defer f.env.Work.Done()
	leg := f.leg
	// The client begins again on the tuple: all of the rest comes before it can know
	// that the tuple is free. A server's client knows by the wire leg, and its SYN
	// must not meet an application that is still connected to us.
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

// closeCarries closes the queue pairs, each on its shard, and then runs done.
// All queue pairs of a flow belong to one shard.
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

// closeAll closes each, whatever becomes of another.
func closeAll(carries []*carry) {
	for _, c := range carries {
		defer c.close()
	}
}

// bury takes the flow out of the tables and into the history.
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

// whenGone runs fn after the flow has left the tables, or now if it has. The caller
// is on the shard.
func (f *Flow) whenGone(fn func()) {
	if f.buried.Load() {
		fn()
	} else {
		f.after = append(f.after, fn)
	}
}

// dropLocal ends the app leg and the queue pairs of a server that declines;
// the wire leg stays for the client to read why.
func (f *Flow) dropLocal() {
	carries, leg := f.carries, f.leg
	f.carries, f.leg = nil, nil
	f.closeCarries(carries, func() { f.endLeg(leg, true) })
	_ = f.env.Steering.Transition(ebpf.Tuple(f.Tuple), f.ISN, ebpf.StateWire, ebpf.StateServing)
}

// forgetTimeWait lets the client's next connection on the tuple be carried too.
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
		f.entryReleased()
	}
}

// entryDead leaves an entry that swallows late segments; the sweep removes it.
func (f *Flow) entryDead() {
	_ = f.env.Steering.Transition(ebpf.Tuple(f.Tuple), f.ISN, ebpf.StateDead, ownedStates[:]...)
}

// entryReleased opens the way for the bare SYN and sends it.
func (f *Flow) entryReleased() {
	t := ebpf.Tuple(f.Tuple)
	err := f.env.Steering.Transition(t, f.ISN, ebpf.StateReleased, ebpf.StateNegotiating, ebpf.StateCompleting)
	if err != nil {
		return // the application has given up or begun again, or its kernel goes on by itself
	}
	if err := f.env.Steering.InjectApp(f.syn); err != nil {
		f.debug("bare SYN; the kernel's own will do", "error", err)
	}
}

// ownedStates are those in which the gateway owns the wire leg.
var ownedStates = [...]ebpf.State{
	ebpf.StateNegotiating, ebpf.StateCompleting, ebpf.StateCarrying,
	ebpf.StateWire, ebpf.StateServing, ebpf.StateRaw,
}
