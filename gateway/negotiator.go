package gateway

import (
	"errors"
	"io"
	"sync"
	"time"

	"github.com/smcgw/smcgw/negotiate"
	"github.com/smcgw/smcgw/netstack"
)

// machine is what negotiate.Client and negotiate.Server have in common.
type machine interface {
	Deadline() time.Time
	Tick(now time.Time) []negotiate.Action
	Receive(now time.Time, b []byte) []negotiate.Action
	WireLost(now time.Time) []negotiate.Action
	Cancel(now time.Time, r negotiate.Reason) []negotiate.Action
	Verdict() (negotiate.Verdict, bool)
	State() string
}

// negotiator runs one handshake: it feeds the sans-IO machine with what the
// wire, the application and the carriers report, and executes its actions. One
// goroutine per flow in handshake; it leaves when the flow is carried, raw or
// over.
type negotiator struct {
	f    *flow
	hs   machine
	box  *mailbox
	done bool // nothing is left for this goroutine

	reading func() bool                            // whether hs wants the wire leg read
	execute func(a negotiate.Action)               // one action
	eof     func(now time.Time) []negotiate.Action // the peer ended its direction
}

// input queues something that happened; false means the handshake is over and
// what came late is the caller's to undo.
func (n *negotiator) input(fn func(now time.Time) []negotiate.Action) bool {
	return n.box.put(func() { n.do(fn(time.Now())) })
}

// run executes start and then whatever follows, until done. A flow that is
// handed over while the gateway goes down is ended here: drain has passed it by.
func (n *negotiator) run(start []negotiate.Action) {
	defer func() {
		n.leave()
		select {
		case <-n.f.g.draining:
			n.f.abort(negotiate.ReasonDrained, false)
		default:
		}
	}()
	n.f.wire.SetNotify(n.box.signal)
	n.do(start)
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	draining := n.f.g.draining
	for !n.done {
		n.readWire()
		if n.done {
			return
		}
		timer.Reset(n.patience())
		select {
		case <-n.box.wake:
			for _, fn := range n.box.take() {
				fn()
			}
		case now := <-timer.C:
			n.readWire() // what has arrived counts before the deadline
			if !n.done {
				n.do(n.hs.Tick(now))
			}
		case <-n.f.gone:
			n.done = true
		case <-draining:
			draining = nil
			n.do(n.hs.Cancel(time.Now(), negotiate.ReasonDrained))
		}
	}
}

// patience is the time until the machine wants a tick.
func (n *negotiator) patience() time.Duration {
	at := n.hs.Deadline()
	if at.IsZero() {
		return time.Hour // somebody else's timer ends this state: a dial, the flow
	}
	return max(0, time.Until(at))
}

func (n *negotiator) do(actions []negotiate.Action) {
	for _, a := range actions {
		if n.done {
			return
		}
		n.execute(a)
	}
	n.f.follow(n.hs.State())
}

// wireBuffers are what handshakes read their wire legs into.
var wireBuffers = sync.Pool{New: func() any { return new([4096]byte) }}

// readWire gives the machine what the wire leg has.
func (n *negotiator) readWire() {
	buf := wireBuffers.Get().(*[4096]byte)
	defer wireBuffers.Put(buf)
	for !n.done && n.reading() {
		k, err := n.f.wire.Read(buf[:])
		now := time.Now()
		switch {
		case errors.Is(err, netstack.ErrWouldBlock):
			return
		case errors.Is(err, io.EOF):
			n.do(n.eof(now))
			return
		case err != nil:
			n.do(n.hs.WireLost(now))
			return
		}
		n.do(n.hs.Receive(now, buf[:k]))
	}
}

// leave runs what came too late: its effects on a finished machine are none,
// but legs and carriers that arrived with it are undone by their closures.
func (n *negotiator) leave() {
	for _, fn := range n.box.close() {
		fn()
	}
}

// send writes a CLC message. The send buffer of a young connection takes it
// whole; anything else is a wire leg that is lost.
func (n *negotiator) send(b []byte) {
	if k, err := n.f.wire.Write(b); err != nil || k < len(b) {
		n.box.put(func() { n.do(n.hs.WireLost(time.Now())) })
	}
}

// follow moves the flow's state along with the machine's.
func (f *flow) follow(name string) {
	switch name {
	case "negotiating":
		f.to(StateNegotiating)
	case "completing":
		f.to(StateCompleting)
	}
}
