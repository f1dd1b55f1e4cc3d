package conn

import (
	"errors"
	"io"
	"sync/atomic"
	"time"

	life "github.com/smcgw/smcgw/gateway/internal/flow"
	"github.com/smcgw/smcgw/gateway/internal/loop"
	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/negotiate"
	"github.com/smcgw/smcgw/netstack"
)

// machine is what negotiate.Client and negotiate.Server have in common.
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

// negotiator runs one handshake on the shard of its flow: it feeds the sans-IO
// machine with what the wire, the application and the carriers report, and
// executes its actions. Everything but input and look is called on the
// shard. It leaves when the flow is carried, raw or over.
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
	execute func(a negotiate.Action)               // one action
	eof     func(now time.Time) []negotiate.Action // the peer ended its direction
	cut     func(now time.Time)                    // takes in what came before the wire leg ended; may be nil
	tick    func(now time.Time) []negotiate.Action // a deadline has come
	leaving func()                                 // ends what was begun and is wanted no more; may be nil
}

// input queues something that happened. After the end of the handshake it is ignored;
// where the handshake ends with the queue not empty, the machine takes no notice, and fn
// itself has to undo what came late. Safe for concurrent use.
func (n *negotiator) input(fn func(now time.Time) []negotiate.Action) {
	if n.left.Load() {
		return
	}
	n.s.Post(func() {
		n.s.WorksFor(n.f)
		n.happened(fn)
	})
}

// look asks for a look at the wire leg. It only posts.
func (n *negotiator) look() {
	if !n.left.Load() && n.looking.CompareAndSwap(false, true) {
		n.s.Post(n.looked)
	}
}

func (n *negotiator) looked() {
	n.s.WorksFor(n.f)
	n.looking.Store(false) // before the reads: what comes after them is another look's
	n.settle()
}

// begin executes start; the flow has its wire leg. The gateway waits for the
// handshake to leave.
func (n *negotiator) begin(start []negotiate.Action) {
	n.deadline = loop.NewTimer(n.expired)
	n.looking.Store(true)
	n.f.wire.SetNotify(n.look)
	n.do(start)
	select {
	case <-n.f.env.Draining: // drain has passed it by
		n.do(n.hs.Cancel(time.Now(), negotiate.ReasonDrained))
	default:
	}
	n.looked()
}

// settle follows everything that happens.
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
	n.s.SetTimer(&n.deadline, n.hs.Deadline()) // none: another timer ends this state
}

// expired is called at the machine's deadline.
func (n *negotiator) expired() {
	n.s.WorksFor(n.f)
	if n.holding() {
		return
	}
	n.readWire() // what has arrived counts before the deadline
	if n.f.Side == report.SideClient && n.f.core.Phase() == life.Completing && !n.done {
		// On a busy machine the application's connection waits to be accepted, after this
		// very timer.
		n.f.env.Accepting.Arrived(func() { n.s.Post(n.overdue) })
		return
	}
	n.overdue()
}

// overdue is called when the deadline has passed and what had arrived was looked at. By
// how much it is overstepped is this gateway's: what the peer has sent meanwhile may not
// have been looked at.
func (n *negotiator) overdue() {
	n.s.WorksFor(n.f)
	if n.left.Load() || n.holding() {
		return
	}
	if !n.done {
		now := time.Now()
		n.f.env.Pulse.Late(now, now.Sub(n.hs.Deadline()))
		n.do(n.tick(now))
	}
	n.settle()
}

// leave ends the handshake. A finished machine ignores what comes too late; the closures
// of that undo the legs and carriers that arrive with it. A flow that is handed over while the gateway goes down is ended here:
// drain has passed it by.
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

// noNegotiator is the handshake of a flow whose own is over: what that held is not kept
// for the life of the connection.
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

// readWire gives the machine what the wire leg has.
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

// send writes a CLC message. The send buffer of a young connection takes it
// whole; anything else is a wire leg that is lost.
func (n *negotiator) send(b []byte) {
	switch k, err := n.f.wire.Write(b); {
	case err != nil && !errors.Is(err, netstack.ErrWouldBlock): // the peer's end of it is read, too
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

// follow moves the flow's state along with the machine's.
func (f *Flow) follow(s negotiate.Stage) {
	switch s {
	case negotiate.StageNegotiating:
		f.core.Negotiates()
	case negotiate.StageCompleting:
		f.core.Completes()
	case negotiate.StageAccepted, negotiate.StageOver: // the flow is there, or its actions say where it goes
	}
	f.noted()
}
