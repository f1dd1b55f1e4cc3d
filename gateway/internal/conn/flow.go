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

// Flow is one connection this gateway owns, and its shard the flow: handshake, pumps and
// end run on the thread of that, and what else happens is posted to it. Adoption before
// the handshake and the first rendezvous within it have a goroutine each, which post what
// they have made. Exported methods may be called from any goroutine; they post and do not wait.
type Flow struct {
	Opening
	env      *Env
	nonce    uint16           // of the offer
	look     host.Look        // of the SYN or SYN-ACK of the peer
	shed     negotiate.Reason // server: why there is no room for it; set before the handshake
	outdated bool             // its offers were: how it ended says nothing about the peer; of the shard
	start    time.Time
	ago      time.Duration // server: how long before start it arrived at this host; set before the handshake
	rtt      time.Duration // client: of SYN and SYN-ACK
	syn      []byte        // client: the recorded SYN, until it is carried

	Share peers.Share // what a server's counts for

	auto bool // its rule has that action: only adapters carry it; set before the handshake

	// What others see of it; the shard writes it.
	tx, rx atomic.Uint64 // bytes from and to the local application
	phase  atomic.Uint32 // of core
	shown  atomic.Pointer[view]
	buried atomic.Bool // its end is complete
	ring   ringUse
	gone   chan struct{} // closed when its end begins

	// Of the shard:
	core    life.Core
	wire    wireLeg // nil: not yet; it never changes
	hs      *negotiator
	leg     *appLeg
	carries []*carry // queue pairs made for the negotiation, one per carrier
	picked  *carry   // the one that carries, or did
	ctl     *wireControl
	relay   *relay
	raw     *rawRelay
	after   []func() // run when the end is complete
	silence *silence // nil: its application's kernel would notice nothing
	give    func()   // a bare SYN to give back, if no handshake begins
}

// view is what operators see of a flow beside its counters.
type view struct {
	carrier report.Carrier
	demoted string           // why the flow has left its queue pair; empty: it has not
	booked  report.ByteCount // of tx and rx: carried by the queue pair it left
	reason  negotiate.Reason // why it is not, or no longer, carried
	remote  bool             // the peer decided
}

// state returns where the flow stands now.
func (f *Flow) state() life.Phase { return life.Phase(f.phase.Load()) }

// Carried reports whether something moves the bytes of the connection now.
func (f *Flow) Carried() bool {
	p := f.state()
	return p == life.Carrying || p == life.Closing
}

// Ended reports whether nothing of the connection remains but its record.
func (f *Flow) Ended() bool { return f.state().Final() }

// Carrier returns what moves the bytes of the connection, or has moved them.
func (f *Flow) Carrier() report.Carrier { return f.view().carrier }

// view returns what is seen of the flow now.
func (f *Flow) view() view {
	if v := f.shown.Load(); v != nil {
		return *v
	}
	return view{}
}

// show changes what is seen of the flow.
func (f *Flow) show(change func(v *view)) {
	v := f.view()
	change(&v)
	f.shown.Store(&v)
}

// post has the flow's shard run fn. It never blocks.
func (f *Flow) post(fn func()) {
	f.Shard.Post(func() {
		f.Shard.WorksFor(f)
		fn()
	})
}

// setWire gives the flow its wire leg; false means that the flow has ended, and
// the leg is the caller's to end.
func (f *Flow) setWire(c wireLeg) bool {
	if f.core.Ended() {
		return false
	}
	f.wire = c
	return true
}

// setLeg gives the flow its app leg; false means the flow has ended.
func (f *Flow) setLeg(l *appLeg) bool {
	if f.core.Ended() || f.leg != nil {
		return false
	}
	f.leg = l
	return true
}

// addCarry gives the flow a queue pair; false means the flow has ended.
func (f *Flow) addCarry(c *carry) bool {
	if f.core.Ended() {
		return false
	}
	f.carries = append(f.carries, c)
	return true
}

// carryOf returns the queue pair made for one carrier of the negotiation, or nil.
func (f *Flow) carryOf(offered negotiate.CarrierKind) *carry {
	for _, c := range f.carries {
		if c.Offered() == offered {
			return c
		}
	}
	return nil
}

// answered tells the carriers of a client's flow what the ACCEPT of its peer offers; nil:
// the peer has declined because no carrier can be had, for why. It reports whether one of
// the offers was outdated.
func (f *Flow) answered(a *negotiate.Accept, why negotiate.Reason) (outdated bool) {
	for _, c := range f.carries {
		outdated = c.Answered(a, why) || outdated
	}
	return outdated
}

// AddTo adds the connection to those that are carried now.
func (f *Flow) AddTo(s *report.Snapshot) {
	by := f.Carrier()
	if by == report.CarrierNone {
		return
	}
	s.Flows[by]++
	s.AddRing(by, f.ring.use())
}

// addBytes adds what the flow's present carrier has carried to the totals.
func (f *Flow) addBytes(totals map[report.Carrier]report.ByteCount) {
	v := f.view()
	b := totals[v.carrier]
	b.Tx += f.tx.Load() - v.booked.Tx
	b.Rx += f.rx.Load() - v.booked.Rx
	totals[v.carrier] = b
}

// tell gives an event to the readers of the feed.
func (f *Flow) tell(kind report.EventKind) {
	if f.env.Feed.Watched() {
		f.env.Feed.Tell(kind, f.Info(time.Now()))
	}
}

// Pair describes the queue pair that carries; nil: none does. The caller is on the shard.
func (f *Flow) Pair() *report.PairInfo {
	if f.core.Ended() || len(f.carries) != 1 || !f.carries[0].Carries() {
		return nil
	}
	return f.carries[0].Describe()
}

// debug logs a step of the connection.
func (f *Flow) debug(msg string, args ...any) {
	if !f.env.Log.Enabled(f.env.Context, slog.LevelDebug) {
		return
	}
	f.env.Log.Debug(msg, append([]any{"flow_id", f.ID, "local", f.Tuple.Local, "remote", f.Tuple.Remote}, args...)...) //nolint:sloglint // of callers: constants
}

// begins tells that a carrier carries the connection from now on.
func (f *Flow) begins(by report.Carrier) {
	f.syn = nil // it cannot fall back any more
	f.show(func(v *view) { v.carrier = by })
	f.noted()
	f.env.Counters.carried(f, by, time.Since(f.start), f.rtt)
	f.env.Lines.Carried(func() report.ConnInfo { return f.Info(time.Now()) })
	f.tell(report.EventCarried)
}

// Info describes the connection for an operator.
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

// Peer is whose share the connection counts for.
func (f *Flow) Peer() netip.Addr { return f.Tuple.Remote.Addr().Unmap() }
