package conn

import (
	"errors"
	"time"

	"github.com/smcgw/smcgw/ebpf"
	"github.com/smcgw/smcgw/gateway/internal/host"
	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/negotiate"
	"github.com/smcgw/smcgw/netstack"
)

// Desk receives connections as they begin. Its fields are set before the first one.
type Desk struct {
	Env *Env
	// Find returns the live connection with this tuple, or nil.
	Find func(t host.Tuple) *Flow
	// Begin enters a connection into the table. fresh is false if it is there already, and
	// also, with a nil f, if the gateway is shutting down.
	Begin func(side report.Side, t host.Tuple, isn uint32) (f *Flow, fresh bool)
	// Hold keeps the gateway from ending until Env.Work is done. It returns false if the
	// gateway is shutting down.
	Hold func() bool
	// Admit decides whether there is room for a connection that is in the table. If there is
	// none, shed says why, and declines reports whether there is room to tell its client so.
	Admit func(f *Flow) (shed negotiate.Reason, declines bool)
	// Auto reports whether the rule with this number has action auto.
	Auto func(rule int) bool
}

var _ netstack.Handler = (*Desk)(nil)

// SYNACK is called by netstack for an accepted SYN-ACK on an unknown tuple: the peer gateway
// answered the offer of a connection that a local application began.
func (d *Desk) SYNACK(sa netstack.SYNACK) {
	t := host.Tuple(sa.Tuple)
	defer d.containAbout(t)
	e, err := d.Env.Steering.Flow(ebpf.Tuple(t))
	if err != nil || e.State != ebpf.StateNegotiating {
		return // the application gave up, or this is a late duplicate
	}
	if !d.Hold() { // shutting down: the connection falls back untouched
		d.Env.Release(t, e.ISN, e.SYN)
		return
	}
	f, fresh := d.Begin(report.SideClient, t, e.ISN)
	if !fresh {
		d.Env.Work.Done()
		return
	}
	shed, _ := d.Admit(f)
	f.Adopt(sa, e, d.Auto(e.Rule), shed)
}

// AppAccepted passes an accepted app leg to its flow.
func (d *Desk) AppAccepted(fd int, t host.Tuple) {
	f := d.Find(t)
	if f == nil || f.Side != report.SideClient {
		resetLeg(fd)
		return
	}
	f.AppAccepted(fd)
}

// longestRTT bounds how far a client's answer to a SYN-ACK can stretch the deadlines of its
// handshake. Without the bound, a client could delay the answer for as long as the cookie is
// valid.
const longestRTT = 3 * time.Second

// Proved is called by netstack when the client of an offer that the programs answered has
// proved its address by its reply. From here on the connection has a flow. If there is no
// room for it, it is declined once its gateway has been heard, since its SYN is gone by now.
// If too many connections wait to be declined already, it is turned away.
func (d *Desk) Proved(syn netstack.SYN) (rtt time.Duration, ok bool) {
	t := host.Tuple(syn.Tuple)
	defer d.containAbout(t)
	e, err := d.Env.Steering.Flow(ebpf.Tuple(t))
	if err != nil || e.ISN != syn.ISN || e.State != ebpf.StateWire {
		return 0, false
	}
	old := d.Find(t)
	if old != nil && old.ISN != syn.ISN {
		old.Replaced()
	}
	f, fresh := d.Begin(report.SideServer, t, syn.ISN)
	switch {
	case f == nil: // shutting down
		d.turnAway(syn)
		return 0, false
	case fresh:
		shed, declines := d.Admit(f)
		if !declines {
			d.turnAway(syn)
			f.turnAway(shed)
			return 0, false
		}
		f.expect(syn, e.Age, d.Auto(e.Rule), shed)
	}
	if f.Offered() {
		return 0, false
	}
	return min(e.ChangedAt-e.OfferedAt, longestRTT), true
}

// OfferedSYN is called by netstack for a SYN with an offer on the tuple of another
// connection: the client has started over. If the flow on that tuple is of a local client,
// the SYN is forged and ignored.
func (d *Desk) OfferedSYN(syn netstack.SYN) {
	t := host.Tuple(syn.Tuple)
	defer d.containAbout(t)
	e, err := d.Env.Steering.Flow(ebpf.Tuple(t))
	if err == nil && e.ISN == syn.ISN {
		return // a late copy of the SYN that was already answered
	}
	raw := append([]byte(nil), syn.Raw...)
	give := func() { d.Env.returnSYN(t, e.ISN, raw) }
	switch old := d.Find(t); {
	case old == nil:
		give()
	case old.Side == report.SideServer:
		old.beganAnew(give)
	}
}

// BareSYN is called by netstack for a SYN without an offer on a steered tuple: the client
// fell back to native TCP (docs/ARCHITECTURE.md "SYNs on a known tuple").
func (d *Desk) BareSYN(syn netstack.SYN) {
	t := host.Tuple(syn.Tuple)
	defer d.containAbout(t)
	f := d.Find(t)
	if f == nil {
		// No flow exists: the segment that would have proved the connection was lost on the
		// way.
		if e, err := d.Env.Steering.Flow(ebpf.Tuple(t)); err == nil {
			d.Env.returnSYN(t, e.ISN, syn.Raw)
		}
		return
	}
	if f.Side != report.SideServer {
		return
	}
	raw := append([]byte(nil), syn.Raw...)
	f.BareSYN(func() { d.Env.returnSYN(t, f.ISN, raw) })
}

// turnAway leaves a proved connection, for which there is no room, to the kernel. Its SYN is
// gone, so the kernel resets it on the next segment.
func (d *Desk) turnAway(syn netstack.SYN) {
	t := host.Tuple(syn.Tuple)
	if err := d.Env.Steering.Delete(ebpf.Tuple(t), syn.ISN, ebpf.StateWire); err != nil {
		d.Env.Log.Debug("connection that was turned away", "tuple", t, "error", err)
	}
}

// NotAccepted is called by netstack for a proved connection that failed to begin.
func (d *Desk) NotAccepted(syn netstack.SYN, err error) {
	t := host.Tuple(syn.Tuple)
	defer d.containAbout(t)
	f := d.Find(t)
	known := f != nil && f.ISN == syn.ISN && f.Side == report.SideServer
	overload := errors.Is(err, netstack.ErrOverload)
	if overload {
		d.turnAway(syn)
	}
	switch {
	case known:
		f.NotAccepted(err)
	case overload:
		d.Env.Counters.Fallback(negotiate.ReasonRateLimit, report.SideServer)
	}
}

// Accepted is called by netstack when a proved connection has begun.
func (d *Desk) Accepted(wire *netstack.Conn) {
	t := host.Tuple(wire.Tuple())
	defer d.containAbout(t)
	f := d.Find(t)
	if f == nil || f.Side != report.SideServer || f.ISN != wire.ISN() || !d.Hold() {
		wire.Forget()
		return
	}
	f.Serve(wire)
}

// containAbout is deferred by callbacks about a tuple. A panic ends the flow with that tuple;
// if there is none, the panic continues.
func (d *Desk) containAbout(t host.Tuple) {
	r := recover()
	if r == nil {
		return
	}
	f := d.Find(t)
	if f == nil {
		panic(r)
	}
	f.Panicked(r)
}

// beganAnew ends the connection because its client is starting a new one on the tuple while
// the entry still belongs to this one. The new connection is native: give, which passes its
// SYN to the kernel, is called as soon as the app leg of the old one has been reset.
func (f *Flow) beganAnew(give func()) {
	f.post(func() {
		f.replaced()
		f.whenGone(give)
	})
}

// BareSYN reports a SYN without an offer on the tuple: the client fell back to native TCP
// (docs/ARCHITECTURE.md "SYNs on a known tuple"). give passes the SYN to the kernel.
func (f *Flow) BareSYN(give func()) { f.post(func() { f.bareSYNCame(give) }) }

func (f *Flow) bareSYNCame(give func()) {
	n := f.hs
	if n == nil && !f.core.Ended() {
		f.give = give // the handshake processes it first, or never begins
		return
	}
	if s, ok := serverOf(n); !ok || !n.fellBack(s, give) {
		f.replaced()
		f.whenGone(give)
	}
}

// fellBack tells the handshake that the client continued natively. What the client sent
// before is read first, since it says why. fellBack reports false if the handshake is over.
// It must be called on the shard.
func (n *negotiator) fellBack(s *negotiate.Server, give func()) bool {
	if n.left.Load() {
		return false
	}
	n.happened(func(now time.Time) []negotiate.Action {
		n.readWire()
		n.do(s.Released(now))
		if n.f.core.Ended() {
			n.f.whenGone(give)
		}
		return nil
	})
	return true
}
