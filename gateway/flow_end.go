package gateway

import (
	"time"

	"github.com/smcgw/smcgw/ebpf"
	"github.com/smcgw/smcgw/gateway/admin"
	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/negotiate"
)

// teardown ends the flow. The app leg goes before the entry, since its reset
// still needs the steering; a dead entry still steers it. It also goes before
// the wire leg in handshakes: the client's bare SYN comes right behind the end
// of that, and must not meet an application that is still connected to us. So a
// dial under way ends first. What the shard owns ends on its thread.
func (f *flow) teardown(c cause, v negotiate.Verdict) {
	f.endOnce.Do(func() {
		e := &endings[c]
		f.mu.Lock()
		f.ended = true
		p := parts{f.hs, f.leg, f.ctl, f.carries, f.relay, f.raw}
		f.mu.Unlock()
		f.g.wg.Add(1)
		word := negotiate.ReasonNone
		if e.tell && !v.Remote {
			word = v.Reason
		}
		defer f.endParts(e, word, p) // even behind a panic
		f.account(e, v)
		f.to(e.state)
		close(f.gone)
		if e.app == appDrained && len(p.carries) == 1 {
			p.carries[0].Shard.Post(p.carries[0].lastWords)
		}
	})
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

// endParts ends what the flow is made of, on its shard.
func (f *flow) endParts(e *ending, word negotiate.Reason, p parts) {
	finish := func() {
		defer f.g.wg.Done()
		leg := f.appLeg()
		// Who begins anew on the tuple is the client: all of the rest comes before it
		// can know that the tuple is free. A server's client knows by the wire leg, and
		// its SYN must not meet an application that is still connected to us.
		wireFirst := e.anew && f.side == config.SideClient
		if e.anew {
			f.entryDead()
			if wireFirst {
				f.endWire(e.wire)
			}
			f.g.unlink(f)
		}
		f.endLeg(leg, e.app != appClean)
		if e.state == StateClosed && f.side == config.SideServer {
			f.forgetTimeWait()
		}
		if !wireFirst {
			f.endWire(e.wire)
		}
		f.endEntry(e.entry)
		f.bury(e.end)
	}
	s := f.g.shardFor(f)
	s.Post(func() {
		s.WorksFor(f)
		defer finish()
		p.end(word)
	})
}

// account keeps the books of an ending: only the one that counts does.
func (f *flow) account(e *ending, v negotiate.Verdict) {
	if e.state == StateAborted && v.Reason != negotiate.ReasonNone && f.getState() >= StateCarrying {
		f.instead(v.Reason, v.Remote)
	}
	f.because(v.Reason, v.Remote)
	f.g.remember(f, v)
	if e.fellBack.counts(f.side) {
		f.countFallback(v.Reason)
	}
}

// countFallback counts a connection that the gateway gave back or refused,
// once, whatever becomes of it afterwards.
func (f *flow) countFallback(r negotiate.Reason) {
	f.mu.Lock()
	counted := f.counted
	f.counted = true
	f.mu.Unlock()
	if !counted {
		f.g.count.fallback(r, f.side)
		if r == negotiate.ReasonAuthFailed {
			f.g.stranger(f.tuple.Remote.Addr(), f.side)
		}
	}
}

func (f *flow) endLeg(leg *appLeg, reset bool) {
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
func (f *flow) closeCarries(carries []*carry, done func()) {
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
func (f *flow) bury(end admin.End) {
	f.g.unlink(f)
	info := f.info(time.Now())
	info.End, info.EndedAt = end, time.Now()
	f.g.count.ended(info.Carrier, f.carriedBytes())
	f.learn(true, time.Now())
	switch end {
	case "": // recorded elsewhere
	case admin.EndNative:
		f.g.native.Add(info)
	default:
		f.g.closed.Add(info)
	}
	f.g.log.Debug("connection ended", "flow_id", f.id, "end", end, "reason", info.Reason, "decided_by", info.DecidedBy)
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
func (f *flow) whenGone(fn func()) {
	if f.buried.Load() {
		fn()
	} else {
		f.after = append(f.after, fn)
	}
}

// abort ends both legs at once: bytes on the way may be lost, as with RST, but
// not those that have arrived. Reason 0 is a reset of the local application.
func (f *flow) abort(r negotiate.Reason, remote bool) {
	f.teardown(causeAborted, negotiate.Verdict{Reason: r, Remote: remote})
}

// abortVerdict is abort as the handshake ordered it.
func (f *flow) abortVerdict(a negotiate.Abort) {
	c, mute := causeRefused, causeRefusedMute
	if v := a.Verdict; v.Outcome == negotiate.OutcomeDeclined || v.Reason == negotiate.ReasonClientGone {
		c, mute = causeDeclined, causeDeclinedMute // the connection goes on without us, or never was
	}
	if a.Silent {
		c = mute
	}
	f.teardown(c, a.Verdict)
}

// release gives a client's connection back to its kernel: the wire leg is
// reset and, behind the RST, the application's SYN goes out again, bare.
func (f *flow) release(v negotiate.Verdict) { f.teardown(causeReleased, v) }

// complete is the end everybody wanted.
func (f *flow) complete() { f.teardown(causeClosed, negotiate.Verdict{}) }

// replaced ends a flow whose tuple belongs to a newer connection: not a packet
// may leave on it.
func (f *flow) replaced() {
	c := causeReplaced
	if f.getState() < StateCarrying { // given back, or begun anew, before anything was carried
		c = causeBegunAnew
	}
	f.teardown(c, negotiate.Verdict{Reason: negotiate.ReasonClientGone, Remote: f.side == config.SideServer})
}

// givenBack ends a flow that the programs gave back to the kernel while the gateway was
// late, and a server flow whose client sent another SYN instead of the third ACK. The
// programs have recorded what became of it.
func (f *flow) givenBack() { f.teardown(causeGivenBack, negotiate.Verdict{}) }

// vanish ends a server flow that never had a wire leg.
func (f *flow) vanish(r negotiate.Reason) {
	f.teardown(causeVanished, negotiate.Verdict{Reason: r, Remote: r == negotiate.ReasonClientGone})
}

// completeRaw ends a raw relay after FIN both ways, when the wire leg has
// delivered its own.
func (f *flow) completeRaw() { f.teardown(causeRawClosed, negotiate.Verdict{}) }

// dropLocal ends the app leg and the queue pairs of a server that declines;
// the wire leg stays for the client to read why.
func (f *flow) dropLocal() {
	f.mu.Lock()
	carries, leg := f.carries, f.leg
	f.carries, f.leg = nil, nil
	f.mu.Unlock()
	f.closeCarries(carries, func() { f.endLeg(leg, true) })
	_ = f.g.steer.Transition(ebpf.Tuple(f.tuple), f.isn, ebpf.StateWire, ebpf.StateServing)
}

// forgetTimeWait lets the client's next connection on the tuple be carried too.
func (f *flow) forgetTimeWait() {
	if _, err := f.g.steer.ForgetTimeWait(ebpf.Tuple(f.tuple)); err != nil {
		f.g.log.Debug("time-wait of the application", "flow_id", f.id, "error", err)
	}
}

func (f *flow) endWire(how wireEnd) {
	switch {
	case f.wire == nil:
	case how == wireReset:
		f.wire.Abort()
	case how == wireForget:
		f.wire.Forget()
	case how == wireClose:
		_ = f.wire.Close()
	}
}

func (f *flow) endEntry(how entryEnd) {
	switch how {
	case entryKept:
	case entryDead:
		f.entryDead()
	case entryRelease:
		f.entryReleased()
	}
}

// entryDead leaves an entry that swallows late segments; the sweep removes it.
func (f *flow) entryDead() {
	_ = f.g.steer.Transition(ebpf.Tuple(f.tuple), f.isn, ebpf.StateDead, ownedStates[:]...)
}

// entryGone removes the entry: what comes now is for the kernel.
func (f *flow) entryGone() { _ = f.g.steer.Delete(ebpf.Tuple(f.tuple), f.isn) }

// entryReleased opens the way for the bare SYN and sends it.
func (f *flow) entryReleased() {
	t := ebpf.Tuple(f.tuple)
	err := f.g.steer.Transition(t, f.isn, ebpf.StateReleased, ebpf.StateNegotiating, ebpf.StateCompleting)
	if err != nil {
		return // the application has given up or begun anew, or its kernel goes on by itself
	}
	if err := f.g.steer.InjectApp(f.syn); err != nil {
		f.g.log.Debug("bare SYN; the kernel's own will do", "flow_id", f.id, "error", err)
	}
}

// ownedStates are those in which the gateway owns the wire leg.
var ownedStates = [...]ebpf.State{
	ebpf.StateNegotiating, ebpf.StateCompleting, ebpf.StateCarrying,
	ebpf.StateWire, ebpf.StateServing, ebpf.StateRaw,
}

// drain ends the flow because the gateway does, or is to carry nothing: what is in handshake is given
// back by its handshake, what is carried is reset. A client's flow has one from
// the beginning; those that begin or hand over later look at draining themselves.
func (f *flow) drain(r negotiate.Reason) {
	hs := f.negotiating()
	if f.getState() < StateCarrying && (f.side == config.SideClient || hs != nil) {
		if hs != nil {
			hs.input(func(now time.Time) []negotiate.Action { return hs.hs.Cancel(now, r) })
		}
		return
	}
	if f.getState() < StateCarrying { // half open: the client comes back by itself
		f.teardown(causeHalfOpen, negotiate.Verdict{Reason: r})
		return
	}
	f.abort(r, false)
}
