package conn

import (
	"time"

	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/negotiate"
)

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
