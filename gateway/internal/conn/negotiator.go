package conn

import (
	"errors"
	"io"
	"sync/atomic"
	"time"

	"github.com/smcgw/smcgw/ebpf/legs"
	"github.com/smcgw/smcgw/gateway/faults"
	"github.com/smcgw/smcgw/gateway/internal/carrier"
	life "github.com/smcgw/smcgw/gateway/internal/flow"
	"github.com/smcgw/smcgw/gateway/internal/host"
	"github.com/smcgw/smcgw/gateway/internal/loop"
	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/negotiate"
	"github.com/smcgw/smcgw/netstack"
)

// machine is the common interface of negotiate.Client and negotiate.Server.
type machine interface {
	Deadline() time.Time
	Tick(now time.Time) []negotiate.Action
	Receive(now time.Time, b []byte) []negotiate.Action
	WireLost(now time.Time) []negotiate.Action
	WireFailed(now time.Time) []negotiate.Action
	Cancel(now time.Time, r negotiate.Reason) []negotiate.Action
	Verdict() (negotiate.Verdict, bool)
	Stage() negotiate.Stage
}

// negotiator runs one handshake on the shard of its flow: it feeds the sans-IO machine with
// what the wire, the application and the carriers report, and executes the machine's actions.
// Everything except input and look must be called on the shard. The negotiator leaves when
// the flow is carried, relayed raw, or over.
type negotiator struct {
	f    *Flow
	s    *loop.Shard
	hs   machine
	done bool // nothing is left to do here

	looking  atomic.Bool // a look at the wire leg is posted
	left     atomic.Bool // leave was called
	deadline loop.Timer
	hold     heldHandshake

	reading func() bool                            // whether hs wants the wire leg read
	execute func(a negotiate.Action)               // executes one action
	eof     func(now time.Time) []negotiate.Action // the peer has ended its direction
	cut     func(now time.Time)                    // takes in what came before the wire leg ended; may be nil
	leaving func()                                 // cancels what was begun and is no longer wanted; may be nil
}

// input queues an event. After the handshake has ended it does nothing. If the handshake ends
// while events are queued, fn still runs but the machine ignores it, so fn itself must undo
// what came too late. Safe for concurrent use.
func (n *negotiator) input(fn func(now time.Time) []negotiate.Action) {
	if n.left.Load() {
		return
	}
	n.s.Post(func() {
		n.s.WorksFor(n.f)
		n.happened(fn)
	})
}

// look asks the shard to look at the wire leg. It only posts.
func (n *negotiator) look() {
	if !n.left.Load() && n.looking.CompareAndSwap(false, true) {
		n.s.Post(n.looked)
	}
}

func (n *negotiator) looked() {
	n.s.WorksFor(n.f)
	n.looking.Store(false) // before the reads: whatever comes after them posts another look
	n.settle()
}

// begin executes the actions of start; the flow must have its wire leg. The gateway waits for
// the handshake to leave.
func (n *negotiator) begin(start []negotiate.Action) {
	n.deadline = loop.NewTimer(n.expired)
	n.looking.Store(true)
	n.f.wire.SetNotify(n.look)
	n.do(start)
	select {
	case <-n.f.env.Draining: // the drain missed this flow
		n.do(n.hs.Cancel(time.Now(), negotiate.ReasonDrained))
	default:
	}
	n.looked()
}

// settle is called after every event.
func (n *negotiator) settle() {
	if n.left.Load() || n.holding() {
		return
	}
	n.done = n.done || n.f.core.Ended()
	n.readWire()
	if n.done {
		n.leave()
		return
	}
	n.s.SetTimer(&n.deadline, n.hs.Deadline()) // without a deadline, another timer ends this state
}

// expired is called at the machine's deadline.
func (n *negotiator) expired() {
	n.s.WorksFor(n.f)
	if n.holding() {
		return
	}
	n.readWire() // what arrived before the deadline counts
	if n.f.Side == report.SideClient && n.f.core.Phase() == life.Completing && !n.done {
		// On a busy machine the application's connection may be waiting to be accepted while
		// this timer is handled, so accept what has arrived first.
		n.f.env.Accepting.Arrived(func() { n.s.Post(n.overdue) })
		return
	}
	n.overdue()
}

// overdue is called when the deadline has passed and everything that had arrived has been
// looked at. The delay past the deadline is reported as this gateway's lateness, because what
// the peer sent in that time may not have been looked at yet.
func (n *negotiator) overdue() {
	n.s.WorksFor(n.f)
	if n.left.Load() || n.holding() {
		return
	}
	if !n.done {
		now := time.Now()
		n.f.env.Pulse.Late(now, now.Sub(n.hs.Deadline()))
		n.do(n.hs.Tick(now))
	}
	n.settle()
}

// leave ends the handshake. A finished machine ignores late events; their closures release
// the legs and carriers that they bring. A flow that is handed over while the gateway shuts
// down is aborted here, because the drain missed it.
func (n *negotiator) leave() {
	if n.left.Swap(true) {
		return
	}
	defer n.f.env.Work.Done()
	n.done = true
	n.s.SetTimer(&n.deadline, time.Time{})
	if n.leaving != nil {
		n.leaving()
	}
	n.f.hs = noNegotiator
	select {
	case <-n.f.env.Draining:
		n.f.abort(negotiate.ReasonDrained, false)
	default:
	}
}

// noNegotiator replaces the negotiator of a flow whose handshake is over, so that its memory
// is not kept for the life of the connection.
var noNegotiator = func() *negotiator {
	n := new(negotiator)
	n.left.Store(true)
	return n
}()

func (n *negotiator) do(actions []negotiate.Action) {
	for _, a := range actions {
		if n.done {
			return
		}
		n.execute(a)
	}
	n.f.follow(n.hs.Stage())
	n.reached(n.hs.Stage())
}

// readWire feeds the machine everything that the wire leg has to read.
func (n *negotiator) readWire() {
	buf := n.s.Scratch()
	for !n.done && n.reading() {
		k, err := n.f.wire.Read(buf)
		now := time.Now()
		switch {
		case errors.Is(err, netstack.ErrWouldBlock):
			return
		case err != nil:
			if n.cut != nil {
				n.cut(now)
			}
			if errors.Is(err, io.EOF) {
				n.do(n.eof(now))
			} else {
				n.do(n.hs.WireLost(now))
			}
			return
		}
		n.do(n.hs.Receive(now, buf[:k]))
	}
}

// send writes a CLC message. The send buffer of a new connection has room for all of it; a
// short write means that the wire leg is lost.
func (n *negotiator) send(b []byte) {
	switch k, err := n.f.wire.Write(b); {
	case err != nil && !errors.Is(err, netstack.ErrWouldBlock): // reading finds that the peer has closed it, too
		n.input(n.hs.WireLost)
	case k < len(b):
		n.input(n.hs.WireFailed)
	}
}

// setNegotiator gives the flow its handshake.
func (f *Flow) setNegotiator(n *negotiator) {
	f.hs = n
	f.core.HandshakeBegins()
}

// follow moves the phase of the flow along with the machine's stage.
func (f *Flow) follow(s negotiate.Stage) {
	switch s {
	case negotiate.StageNegotiating:
		f.core.Negotiates()
	case negotiate.StageCompleting:
		f.core.Completes()
	case negotiate.StageAccepted, negotiate.StageOver: // nothing to do, or the actions say where the flow goes
	}
	f.noted()
}

// heldHandshake is the state of a handshake that a fault holds at a stage: it ignores
// everything but the end of its flow and of the gateway.
type heldHandshake struct {
	at   negotiate.Stage // the last stage reached
	held bool
	kept []func(now time.Time) []negotiate.Action // events that came meanwhile
}

// reached records the stage that the handshake has reached.
func (n *negotiator) reached(s negotiate.Stage) {
	if n.f.env.Faults == nil || s == n.hold.at {
		return
	}
	n.hold.at = s
	switch s {
	case negotiate.StageNegotiating:
		n.hold.held = n.f.step(faults.Negotiating) || n.hold.held
	case negotiate.StageCompleting:
		n.hold.held = n.f.step(faults.Completing) || n.hold.held
	case negotiate.StageAccepted, negotiate.StageOver: // not steps of a handshake
	}
}

// holding reports whether the handshake is being held.
func (n *negotiator) holding() bool {
	if !n.hold.held || n.f.core.Ended() {
		return false
	}
	select {
	case <-n.f.env.Draining:
		return false
	default:
		return true
	}
}

// happened executes an event, after those that were held back before it.
func (n *negotiator) happened(fn func(now time.Time) []negotiate.Action) {
	if n.holding() {
		n.hold.kept = append(n.hold.kept, fn)
		return
	}
	kept := n.hold.kept
	n.hold.kept = nil
	for _, k := range kept {
		n.do(k(time.Now()))
	}
	n.do(fn(time.Now()))
	n.settle()
}

// ServicePort returns the server's port of a connection.
func ServicePort(t host.Tuple, side report.Side) uint16 {
	if side == report.SideServer {
		return t.Local.Port()
	}
	return t.Remote.Port()
}

// step is called where a flow reaches a step for fault injection, and reports whether it is
// to be held there.
func (f *Flow) step(step string) (held bool) {
	return f.env.Faults != nil && f.env.Faults.At(step, ServicePort(f.Tuple, f.Side))
}

// shortage returns the reason for an error of a leg that reports a lack of resources, or ReasonNone.
func shortage(err error) negotiate.Reason {
	if errors.Is(err, legs.ErrKeeper) {
		return negotiate.ReasonNoMemory
	}
	return carrier.Shortage(err)
}

// remember stores what a verdict says about the peer in the steering's maps, where the next
// decision is made. The refusal of a trial says nothing about other connections, and a
// timeout says nothing about the peer if this gateway was late itself during part of the
// wait.
func (f *Flow) remember(v negotiate.Verdict) {
	e := f.env
	if !e.Policy.Remembers(v) || f.Trial != nil || f.outdated {
		return
	}
	if v.Waited > 0 && e.Pulse.WasLate(f.start, time.Now(), v.Waited) {
		return
	}
	addr, port := f.Tuple.Remote.Addr(), f.Tuple.Remote.Port()
	if f.Side == report.SideServer || e.Policy.ScopeOf(v.Reason) == negotiate.ScopePeer {
		port = 0
	}
	now := time.Now()
	ttl := e.Peers.Strike(addr, port, v.Reason, e.Policy, now).Until.Sub(now)
	if ttl <= 0 {
		return
	}
	e.Log.Debug("remember peer", "peer", addr, "port", port, "reason", v.Reason, "ttl", ttl)
	if err := e.Steering.Remember(addr, port, uint8(v.Reason), ttl); err != nil {
		e.Log.Warn("remember peer", "peer", addr, "reason", v.Reason, "error", err)
	}
}

// contradicted forgets what is remembered about the peer and contradicted by this carried
// connection.
func (f *Flow) contradicted() {
	e := f.env
	addr, port := f.Tuple.Remote.Addr(), f.Tuple.Remote.Port()
	if f.Side == report.SideServer {
		port = 0
	}
	for _, p := range e.Peers.Contradicted(addr, port, f.start, e.Policy) {
		e.Log.Debug("forget peer", "peer", addr, "port", p)
		if err := e.Steering.Forget(addr, p); err != nil {
			e.Log.Warn("forget peer", "peer", addr, "port", p, "error", err)
		}
	}
}
