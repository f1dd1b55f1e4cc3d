package conn

import (
	"time"

	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/negotiate"
)

// remember keeps what a verdict says about the peer where the next decision
// is made: in the maps of the steering. What a trial was refused says nothing
// about others, and a wait in vain nothing about the peer where this gateway was late
// itself for a part of it.
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

// contradicted forgets what a carried connection shows to be out of date about its
// peer.
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
