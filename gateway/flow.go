package gateway

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/smcgw/smcgw/gateway/admin"
	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/host"
	"github.com/smcgw/smcgw/gateway/internal/auto"
	"github.com/smcgw/smcgw/gateway/internal/peers"
	"github.com/smcgw/smcgw/negotiate"
)

// State is the life of a flow (docs/ARCHITECTURE.md "Life of a connection"). Its
// transitions are stateMoves and endings:
//
//	accepted    ─► negotiating, carrying
//	negotiating ─► completing, carrying
//	completing  ─► carrying
//	carrying    ─► closing
//	any ─► closed:   closed, raw closed
//	any ─► released: declined, declined mute, released, begun anew, given back, vanished, half open
//	any ─► aborted:  aborted, refused, refused mute, replaced, failed, failed soon
//
// offered and native are known to the programs only: a connection that stays
// native never becomes a flow of this process. A flow is created when an
// accepted SYN-ACK (client) or an offered SYN (server) reaches the gateway.
type State uint32

// The states, in the order in which a flow can pass through them.
const (
	StateOffered State = iota
	StateAccepted
	StateNegotiating
	StateCompleting
	StateCarrying
	StateClosing
	StateClosed
	StateNative
	StateReleased
	StateAborted
	StateDead
)

var stateNames = [...]string{
	"offered", "accepted", "negotiating", "completing", "carrying", "closing",
	"closed", "native", "released", "aborted", "dead",
}

// String returns the name, of docs/ARCHITECTURE.md "Names".
func (s State) String() string {
	if int(s) < len(stateNames) {
		return stateNames[s]
	}
	return fmt.Sprintf("state(%d)", uint32(s))
}

// final reports whether nothing of the flow remains but its record.
func (s State) final() bool {
	switch s {
	case StateClosed, StateReleased, StateAborted, StateNative, StateDead:
		return true
	default:
		return false
	}
}

// flow is one connection this gateway owns. It belongs to its shard: handshake,
// pumps and end run on the thread of that. Adoption before the handshake and the
// first rendezvous within it have a goroutine each.
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

	tx, rx        atomic.Uint64 // bytes from and to the local application
	reads, writes atomic.Uint64 // of the app leg that moved some
	state         atomic.Uint32 // State

	trial *admin.Trial // it belongs to, also when that has ended; nil: none
	share peers.Share

	outdated atomic.Bool // its offers were: nobody is to remember how it ended

	auto bool      // of a rule with action auto: it is learned from
	seen auto.Seen // guarded by auto

	// wire is set by setWire before the negotiation starts and never changes.
	wire   wireLeg
	peerID [16]byte // the peer's gateway, set by the negotiation

	// Of the shard:
	books  ledger      // where both directions stand, since it carries
	after  []func()    // run when teardown is complete
	give   func()      // a bare SYN to give back, if no handshake begins
	buried atomic.Bool // teardown is complete

	gone    chan struct{} // closed when teardown begins
	endOnce sync.Once

	mu      sync.Mutex // guards everything below
	hs      *negotiator
	leg     *appLeg
	carries []*carry // queue pairs made for the negotiation, one per carrier
	picked  *carry   // the one that carries
	ctl     *wireControl
	relay   *relay
	raw     *rawRelay
	carrier config.Carrier
	demoted string           // why the flow has left its queue pair; empty: it has not
	booked  admin.ByteCount  // of tx and rx: carried by the queue pair it left
	reason  negotiate.Reason // why it is not, or no longer, carried
	remote  bool             // the peer decided
	ended   bool             // teardown has begun: nothing may be added
	counted bool             // as a fallback
}

// getState returns the state now.
func (f *flow) getState() State { return State(f.state.Load()) }

// to moves the flow on. A step that the present state does not lead to is none: what
// reports it may be late.
func (f *flow) to(next State) {
	if next == StateCarrying {
		f.share.Carried(f.g.peers, f.peer())
	}
	for {
		cur := State(f.state.Load())
		if !cur.leadsTo(next) {
			return
		}
		if f.state.CompareAndSwap(uint32(cur), uint32(next)) {
			return
		}
	}
}

// because records why the flow left its path and who decided. The first
// reason stays: what follows is its consequence.
func (f *flow) because(r negotiate.Reason, remote bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.becauseLocked(r, remote)
}

func (f *flow) becauseLocked(r negotiate.Reason, remote bool) {
	if f.reason == negotiate.ReasonNone {
		f.reason, f.remote = r, remote
	}
}

// instead is because for the end of a flow that had another reason to be relayed.
func (f *flow) instead(r negotiate.Reason, remote bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.reason, f.remote = r, remote
}

// setNegotiator publishes the running handshake.
func (f *flow) setNegotiator(n *negotiator) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.hs = n
}

// setWire gives the flow its wire leg; false means that the flow has ended, and
// the leg is the caller's to end.
func (f *flow) setWire(c wireLeg) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.ended {
		return false
	}
	f.wire = c
	return true
}

// appLeg returns the app leg, or nil.
func (f *flow) appLeg() *appLeg {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.leg
}

// hasEnded reports whether teardown has begun.
func (f *flow) hasEnded() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.ended
}

// negotiating returns the handshake, or nil before it began.
func (f *flow) negotiating() *negotiator {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.hs
}

// setLeg gives the flow its app leg; false means the flow has ended.
func (f *flow) setLeg(l *appLeg) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.ended || f.leg != nil {
		return false
	}
	f.leg = l
	return true
}

// addCarry gives the flow a queue pair; false means the flow has ended.
func (f *flow) addCarry(c *carry) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.ended {
		return false
	}
	f.carries = append(f.carries, c)
	return true
}

// dropCarry takes one queue pair from the flow and closes it.
func (f *flow) dropCarry(c *carry) {
	f.mu.Lock()
	f.carries = slices.DeleteFunc(f.carries, func(o *carry) bool { return o == c })
	f.mu.Unlock()
	c.s.Post(c.close)
}

// carryOf returns the queue pair made for one carrier, or nil.
func (f *flow) carryOf(kind negotiate.CarrierKind) *carry {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, c := range f.carries {
		if c.kind == kind {
			return c
		}
	}
	return nil
}

// carriedBytes returns what the flow's present carrier has carried.
func (f *flow) carriedBytes() admin.ByteCount {
	f.mu.Lock()
	defer f.mu.Unlock()
	return admin.ByteCount{Tx: f.tx.Load() - f.booked.Tx, Rx: f.rx.Load() - f.booked.Rx}
}

// info describes the flow for an operator.
func (f *flow) info(now time.Time) admin.ConnInfo {
	f.mu.Lock()
	defer f.mu.Unlock()
	c := admin.ConnInfo{
		ID: f.id, Proto: "tcp", Side: f.side, Local: f.tuple.Local, Remote: f.tuple.Remote,
		State: f.getState().String(), Carrier: f.carrier,
		TxBytes: f.tx.Load(), RxBytes: f.rx.Load(), AgeSeconds: now.Sub(f.start).Seconds(),
	}
	c.Demoted = f.demoted
	if f.reason != negotiate.ReasonNone {
		c.Reason, c.DecidedBy = f.reason.String(), decidedBy(f.remote)
	}
	return c
}

func decidedBy(remote bool) string {
	if remote {
		return admin.DecidedRemote
	}
	return admin.DecidedLocal
}
