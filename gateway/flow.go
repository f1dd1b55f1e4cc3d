package gateway

import (
	"slices"
	"sync/atomic"
	"time"

	"github.com/smcgw/smcgw/gateway/admin"
	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/host"
	"github.com/smcgw/smcgw/gateway/internal/auto"
	life "github.com/smcgw/smcgw/gateway/internal/flow"
	"github.com/smcgw/smcgw/gateway/internal/peers"
	"github.com/smcgw/smcgw/negotiate"
)

// flow is one connection this gateway owns, and its shard the flow: handshake, pumps and
// end run on the thread of that, and what else happens is posted to it. Adoption before
// the handshake and the first rendezvous within it have a goroutine each, which post what
// they have made.
type flow struct {
	g     *gateway
	id    uint64
	side  config.Side
	tuple host.Tuple
	isn   uint32           // of the connection's SYN: the app's (client) or the peer's (server)
	nonce uint16           // of the offer
	shed  negotiate.Reason // server: why there is no room for it; set before the handshake
	look  host.Look        // of the SYN or SYN-ACK of the peer
	start time.Time
	rtt   time.Duration // client: of SYN and SYN-ACK
	syn   []byte        // client: the recorded SYN

	trial *admin.Trial // it belongs to, also when that has ended; nil: none
	share peers.Share

	auto bool      // of a rule with action auto: it is learned from
	seen auto.Seen // guarded by auto

	// What others see of it; the shard writes it.
	tx, rx        atomic.Uint64 // bytes from and to the local application
	reads, writes atomic.Uint64 // of the app leg that moved some
	phase         atomic.Uint32 // of core
	shown         atomic.Pointer[view]
	buried        atomic.Bool   // its end is complete
	gone          chan struct{} // closed when its end begins

	// Of the shard:
	core     life.Core
	wire     wireLeg  // nil: not yet; it never changes
	peerID   [16]byte // the peer's gateway, set by the negotiation
	hs       *negotiator
	leg      *appLeg
	carries  []*carry // queue pairs made for the negotiation, one per carrier
	picked   *carry   // the one that carries, or did
	ctl      *wireControl
	relay    *relay
	raw      *rawRelay
	after    []func() // run when the end is complete
	give     func()   // a bare SYN to give back, if no handshake begins
	outdated bool     // its offers were: nobody is to remember how it ended
}

// view is what operators see of a flow beside its counters.
type view struct {
	carrier config.Carrier
	demoted string           // why the flow has left its queue pair; empty: it has not
	booked  admin.ByteCount  // of tx and rx: carried by the queue pair it left
	reason  negotiate.Reason // why it is not, or no longer, carried
	remote  bool             // the peer decided
}

// getState returns where the flow stands now.
func (f *flow) getState() life.Phase { return life.Phase(f.phase.Load()) }

// view returns what is seen of the flow now.
func (f *flow) view() view {
	if v := f.shown.Load(); v != nil {
		return *v
	}
	return view{}
}

// show changes what is seen of the flow.
func (f *flow) show(change func(v *view)) {
	v := f.view()
	change(&v)
	f.shown.Store(&v)
}

// post has the flow's shard run fn. It never blocks.
func (f *flow) post(fn func()) {
	s := f.g.shardFor(f)
	s.Post(func() {
		s.WorksFor(f)
		fn()
	})
}

// setWire gives the flow its wire leg; false means that the flow has ended, and
// the leg is the caller's to end.
func (f *flow) setWire(c wireLeg) bool {
	if f.core.Ended() {
		return false
	}
	f.wire = c
	return true
}

// setLeg gives the flow its app leg; false means the flow has ended.
func (f *flow) setLeg(l *appLeg) bool {
	if f.core.Ended() || f.leg != nil {
		return false
	}
	f.leg = l
	return true
}

// addCarry gives the flow a queue pair; false means the flow has ended.
func (f *flow) addCarry(c *carry) bool {
	if f.core.Ended() {
		return false
	}
	f.carries = append(f.carries, c)
	return true
}

// dropCarry takes one queue pair from the flow and closes it.
func (f *flow) dropCarry(c *carry) {
	f.carries = slices.DeleteFunc(f.carries, func(o *carry) bool { return o == c })
	c.Shard.Post(c.close)
}

// carryOf returns the queue pair made for one carrier, or nil.
func (f *flow) carryOf(kind negotiate.CarrierKind) *carry {
	for _, c := range f.carries {
		if c.Kind == kind {
			return c
		}
	}
	return nil
}

// answered tells the carriers of a client's flow what the ACCEPT of its peer offers; nil:
// the peer has declined because no carrier can be had. It reports whether one of the
// offers was outdated.
func (f *flow) answered(a *negotiate.Accept) (outdated bool) {
	for _, c := range f.carries {
		outdated = c.Answered(a) || outdated
	}
	return outdated
}

// carriedBytes returns what the flow's present carrier has carried.
func (f *flow) carriedBytes() admin.ByteCount {
	booked := f.view().booked
	return admin.ByteCount{Tx: f.tx.Load() - booked.Tx, Rx: f.rx.Load() - booked.Rx}
}

// info describes the flow for an operator.
func (f *flow) info(now time.Time) admin.ConnInfo {
	v := f.view()
	c := admin.ConnInfo{
		ID: f.id, Proto: "tcp", Side: f.side, Local: f.tuple.Local, Remote: f.tuple.Remote,
		State: f.getState().String(), Carrier: v.carrier, Demoted: v.demoted,
		TxBytes: f.tx.Load(), RxBytes: f.rx.Load(), AgeSeconds: now.Sub(f.start).Seconds(),
	}
	if v.reason != negotiate.ReasonNone {
		c.Reason, c.DecidedBy = v.reason.String(), decidedBy(v.remote)
	}
	return c
}

func decidedBy(remote bool) string {
	if remote {
		return admin.DecidedRemote
	}
	return admin.DecidedLocal
}
