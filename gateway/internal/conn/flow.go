package conn

import (
	"log/slog"
	"net/netip"
	"sync/atomic"
	"time"

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
