package conn

import (
	"log/slog"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"github.com/smcgw/smcgw/ebpf"
	"github.com/smcgw/smcgw/gateway/internal/carrier"
	life "github.com/smcgw/smcgw/gateway/internal/flow"
	"github.com/smcgw/smcgw/gateway/internal/host"
	"github.com/smcgw/smcgw/gateway/internal/peers"
	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/negotiate"
)

// Flow is one connection owned by this gateway. The flow is owned by its shard: handshake,
// pumps and teardown run on the shard's thread, and all other events are posted to it.
// Adoption before the handshake and the first rendezvous within it run on goroutines of their
// own, which post their results. Exported methods may be called from any goroutine, except
// where they say otherwise; they post and do not block.
type Flow struct {
	Opening
	env      *Env
	nonce    uint16           // of the offer
	look     host.Look        // of the peer's SYN or SYN-ACK
	shed     negotiate.Reason // server: why there is no room for the flow; set before the handshake
	outdated bool             // its offers were outdated, so its end says nothing about the peer; owned by the shard
	start    time.Time
	ago      time.Duration // server: how long before start the SYN arrived at this host; set before the handshake
	rtt      time.Duration // client: between SYN and SYN-ACK
	syn      []byte        // client: the recorded SYN, until the flow is carried

	Share peers.Share // the peer's share, for a server's flow

	auto bool // its rule has action auto: only adapters carry it; set before the handshake

	// Visible to others; written by the shard.
	tx, rx atomic.Uint64 // bytes from and to the local application
	phase  atomic.Uint32 // of core
	shown  atomic.Pointer[view]
	buried atomic.Bool // its end is complete
	ring   ringUse
	gone   chan struct{} // closed when its end begins

	// Owned by the shard:
	core    life.Core
	wire    wireLeg // nil until set; then it never changes
	hs      *negotiator
	leg     *appLeg
	carries []*carry // queue pairs made for the negotiation, one per carrier; then picked, until it is left
	picked  *carry   // the carry that carries or carried the flow; nil: none has
	ctl     *wireControl
	relay   *relay
	raw     *rawRelay
	after   []func() // run when the end is complete
	silence *silence // nil: the application's kernel would not detect a silent peer by itself
	give    func()   // passes a bare SYN to the kernel if no handshake begins
}

// view is what operators see of a flow besides its counters.
type view struct {
	carrier report.Carrier
	demoted string           // why the flow left its queue pair; empty if it has not
	booked  report.ByteCount // the part of tx and rx carried by the queue pair it left
	reason  negotiate.Reason // why it is not, or no longer, carried
	remote  bool             // the peer decided
}

// state returns the current phase of the flow.
func (f *Flow) state() life.Phase { return life.Phase(f.phase.Load()) }

// Carried reports whether the connection is being carried now.
func (f *Flow) Carried() bool {
	p := f.state()
	return p == life.Carrying || p == life.Closing
}

// Ended reports whether only the record of the connection remains.
func (f *Flow) Ended() bool { return f.state().Final() }

// Carrier returns what carries, or last carried, the connection.
func (f *Flow) Carrier() report.Carrier { return f.view().carrier }

// view returns the current view of the flow.
func (f *Flow) view() view {
	if v := f.shown.Load(); v != nil {
		return *v
	}
	return view{}
}

// show changes the view of the flow.
func (f *Flow) show(change func(v *view)) {
	v := f.view()
	change(&v)
	f.shown.Store(&v)
}

// post runs fn on the flow's shard. It never blocks.
func (f *Flow) post(fn func()) {
	f.Shard.Post(func() {
		f.Shard.WorksFor(f)
		fn()
	})
}

// setWire gives the flow its wire leg. It returns false if the flow has ended; the caller
// must then close the leg.
func (f *Flow) setWire(c wireLeg) bool {
	if f.core.Ended() {
		return false
	}
	f.wire = c
	return true
}

// setLeg gives the flow its app leg. It returns false if the flow has ended or already has a
// leg.
func (f *Flow) setLeg(l *appLeg) bool {
	if f.core.Ended() || f.leg != nil {
		return false
	}
	f.leg = l
	return true
}

// addCarry gives the flow a queue pair. It returns false if the flow has ended.
func (f *Flow) addCarry(c *carry) bool {
	if f.core.Ended() {
		return false
	}
	f.carries = append(f.carries, c)
	return true
}

// carryOf returns the queue pair made for one of the negotiated carriers, or nil.
func (f *Flow) carryOf(offered negotiate.CarrierKind) *carry {
	for _, c := range f.carries {
		if c.Offered() == offered {
			return c
		}
	}
	return nil
}

// answered tells the carriers of a client's flow what the peer's ACCEPT offers. With a nil a,
// the peer declined because no carrier is available, and why is the reason. It reports
// whether one of the offers was outdated.
func (f *Flow) answered(a *negotiate.Accept, why negotiate.Reason) (outdated bool) {
	for _, c := range f.carries {
		outdated = c.Answered(a, why) || outdated
	}
	return outdated
}

// AddTo adds the connection to the snapshot if it is carried.
func (f *Flow) AddTo(s *report.Snapshot) {
	by := f.Carrier()
	if by == report.CarrierNone {
		return
	}
	s.Flows[by]++
	s.AddRing(by, f.ring.use())
}

// addBytes adds to totals the bytes carried by the flow's current carrier.
func (f *Flow) addBytes(totals map[report.Carrier]report.ByteCount) {
	v := f.view()
	b := totals[v.carrier]
	b.Tx += f.tx.Load() - v.booked.Tx
	b.Rx += f.rx.Load() - v.booked.Rx
	totals[v.carrier] = b
}

// tell publishes an event to the readers of the feed.
func (f *Flow) tell(kind report.EventKind) {
	if f.env.Feed.Watched() {
		f.env.Feed.Tell(kind, f.Info(time.Now()))
	}
}

// Pair describes the queue pair that carries the flow, or returns nil. It must be called on
// the shard.
func (f *Flow) Pair() *report.PairInfo {
	if f.core.Ended() || f.picked == nil || !f.picked.Carries() {
		return nil
	}
	return f.picked.Describe()
}

// debug logs a step of the connection.
func (f *Flow) debug(msg string, args ...any) {
	if !f.env.Log.Enabled(f.env.Context, slog.LevelDebug) {
		return
	}
	f.env.Log.Debug(msg, append([]any{"flow_id", f.ID, "local", f.Tuple.Local, "remote", f.Tuple.Remote}, args...)...) //nolint:sloglint // of callers: constants
}

// begins records that by carries the connection from now on.
func (f *Flow) begins(by report.Carrier) {
	f.syn = nil // it cannot fall back any more
	f.show(func(v *view) { v.carrier = by })
	f.noted()
	f.env.Counters.carried(f, by, time.Since(f.start), f.rtt)
	f.env.Lines.Carried(func() report.ConnInfo { return f.Info(time.Now()) })
	f.tell(report.EventCarried)
}

// Info describes the connection for operators.
func (f *Flow) Info(now time.Time) report.ConnInfo {
	v := f.view()
	c := report.ConnInfo{
		ID: f.ID, Proto: "tcp", Side: f.Side, Local: f.Tuple.Local, Remote: f.Tuple.Remote,
		State: f.state().String(), Carrier: v.carrier, Demoted: v.demoted,
		TxBytes: f.tx.Load(), RxBytes: f.rx.Load(), AgeSeconds: now.Sub(f.start).Seconds(),
	}
	if v.reason != negotiate.ReasonNone {
		c.Reason, c.DecidedBy = v.reason.String(), report.DecidedBy(v.remote)
	}
	return c
}

// Peer returns the address whose share the connection counts for.
func (f *Flow) Peer() netip.Addr { return f.Tuple.Remote.Addr().Unmap() }

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
