package gateway

import (
	"errors"
	"time"

	"github.com/smcgw/smcgw/ebpf"
	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/host"
	"github.com/smcgw/smcgw/gateway/internal/conn"
	"github.com/smcgw/smcgw/negotiate"
	"github.com/smcgw/smcgw/netstack"
)

// What arrives at the gateway begins connections, or is given to the one of its tuple. The
// callbacks of netstack do not wait.
var _ netstack.Handler = (*gateway)(nil)

// SYNACK is called by netstack for an accepted SYN-ACK of a tuple it does not
// know: the peer's gateway wants to talk about a connection our application
// has begun.
func (g *gateway) SYNACK(sa netstack.SYNACK) {
	t := host.Tuple(sa.Tuple)
	defer g.containAbout(t)
	e, err := g.steer.Flow(ebpf.Tuple(t))
	if err != nil || e.State != ebpf.StateNegotiating {
		return // the app gave up, or a duplicate of something that is over
	}
	if !g.hold() { // the connection goes back as it came
		g.env.Release(t, e.ISN, e.SYN)
		return
	}
	f, fresh := g.newFlow(config.SideClient, t, e.ISN)
	if !fresh {
		g.wg.Done()
		return
	}
	f.Adopt(sa, e, g.learnsFrom(e.Rule), g.admit(f))
}

// appAccepted gives an accepted app leg to its flow.
func (g *gateway) appAccepted(fd int, t host.Tuple) {
	f := g.find(t)
	if f == nil || f.Side != config.SideClient {
		conn.ResetLeg(fd)
		return
	}
	f.AppAccepted(fd)
}

// longestRTT bounds what a client's answer to a SYN-ACK may stretch the deadlines of
// its handshake: it can wait with that for as long as a cookie is good.
const longestRTT = 3 * time.Second

// Proved is called by netstack for a connection whose offer the programs have
// answered, and whose client has proved its address by what it said to that. From
// here on it has a flow. One that there is no room for is declined when its gateway has
// been heard: its SYN is gone.
func (g *gateway) Proved(syn netstack.SYN) (rtt time.Duration, ok bool) {
	t := host.Tuple(syn.Tuple)
	defer g.containAbout(t)
	e, err := g.steer.Flow(ebpf.Tuple(t))
	if err != nil || e.ISN != syn.ISN || e.State != ebpf.StateWire {
		return 0, false
	}
	old := g.find(t)
	if old != nil && old.ISN != syn.ISN {
		old.Replaced()
	}
	f, fresh := g.newFlow(config.SideServer, t, syn.ISN)
	switch {
	case f == nil: // going down
		g.turnAway(syn)
		return 0, false
	case fresh:
		f.Expect(syn, g.admit(f))
	}
	if f.Offered() {
		return 0, false
	}
	return min(e.ChangedAt-e.OfferedAt, longestRTT), true
}

// OfferedSYN is called by netstack for a SYN with an offer on the tuple of another
// connection: the client has begun anew. It never wants it.
func (g *gateway) OfferedSYN(syn netstack.SYN) bool {
	t := host.Tuple(syn.Tuple)
	defer g.containAbout(t)
	e, err := g.steer.Flow(ebpf.Tuple(t))
	if err == nil && e.ISN == syn.ISN {
		return false // a late copy of the SYN that was answered
	}
	raw := append([]byte(nil), syn.Raw...)
	give := func() { g.env.ReturnSYN(t, e.ISN, raw) }
	if old := g.find(t); old != nil {
		old.BeganAnew(give)
	} else {
		give()
	}
	return false
}

// BareSYN is called by netstack for a SYN without offer on a tuple that was
// steered to us: the client fell back to native TCP
// (docs/ARCHITECTURE.md "SYNs on a known tuple").
func (g *gateway) BareSYN(syn netstack.SYN) {
	t := host.Tuple(syn.Tuple)
	defer g.containAbout(t)
	f := g.find(t)
	if f == nil {
		// Of a connection we never heard of: what proved it was lost on the way here.
		if e, err := g.steer.Flow(ebpf.Tuple(t)); err == nil {
			g.env.ReturnSYN(t, e.ISN, syn.Raw)
		}
		return
	}
	raw := append([]byte(nil), syn.Raw...)
	f.BareSYN(func() { g.env.ReturnSYN(t, f.ISN, raw) })
}

// turnAway leaves a connection to the kernel that there is no room for: the SYN, or
// what behind it proved the client's address, which it resets.
func (g *gateway) turnAway(syn netstack.SYN) {
	t := host.Tuple(syn.Tuple)
	if !syn.Proved {
		g.env.ReturnSYN(t, syn.ISN, syn.Raw)
		return
	}
	if err := g.steer.Delete(ebpf.Tuple(t), syn.ISN, ebpf.StateWire); err != nil {
		g.log.Debug("connection that was turned away", "tuple", t, "error", err)
	}
}

// NotAccepted is called by netstack for an offered SYN that came to nothing.
func (g *gateway) NotAccepted(syn netstack.SYN, err error) {
	t := host.Tuple(syn.Tuple)
	defer g.containAbout(t)
	f := g.find(t)
	known := f != nil && f.ISN == syn.ISN && f.Side == config.SideServer
	overload := errors.Is(err, netstack.ErrOverload)
	if overload {
		g.turnAway(syn)
	}
	switch {
	case known:
		f.NotAccepted(err)
	case overload:
		g.env.Counters.Fallback(negotiate.ReasonRateLimit, config.SideServer)
	}
}

// Accepted is called by netstack when the third ACK of an offered connection
// has arrived.
func (g *gateway) Accepted(wire *netstack.Conn) {
	t := host.Tuple(wire.Tuple())
	defer g.containAbout(t)
	f := g.find(t)
	if f == nil || f.Side != config.SideServer || f.ISN != wire.ISN() || !g.hold() {
		wire.Forget()
		return
	}
	f.Serve(wire)
}
