package gateway

import (
	"net/netip"
	"slices"
	"time"

	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/internal/auto"
	life "github.com/smcgw/smcgw/gateway/internal/flow"
)

// newAutoBook returns nil if no rule has action auto.
func newAutoBook(g *gateway) *auto.Book {
	if !slices.ContainsFunc(g.cfg.Policy, func(r config.Rule) bool { return r.Action == config.ActionAuto }) {
		return nil
	}
	return auto.NewBook(g.steer, g.cfg.Fallback.NegativeCache, g.log)
}

// learnsFrom reports whether connections of the rule with this number are learned
// from: a client's, of a rule with action auto.
func (g *gateway) learnsFrom(rule int) bool {
	if g.auto == nil {
		return false
	}
	policy := g.live.Load().Policy
	return rule >= 0 && rule < len(policy) && policy[rule].Action == config.ActionAuto
}

// learn looks at the flows that go on.
func (g *gateway) learn(now time.Time) {
	if g.auto == nil {
		return
	}
	for _, f := range g.all() {
		if s := f.getState(); s == life.Carrying || s == life.Closing {
			f.learn(false, now)
		}
	}
	g.auto.Compare(now)
}

// learn learns from what the flow did; ended says that it does no more. A flow that
// is not carried, or not yet, tells nothing.
func (f *flow) learn(ended bool, now time.Time) {
	if f.g.auto == nil || !f.auto {
		return
	}
	if carrier := f.view().carrier; carrier != config.CarrierNone {
		f.g.auto.Look(autoConn{f}, carrier, ended, now)
	}
}

// autoConn is a flow as the learner sees it.
type autoConn struct{ f *flow }

// Service implements auto.Conn.
func (c autoConn) Service() netip.AddrPort { return c.f.tuple.Remote }

// Start implements auto.Conn.
func (c autoConn) Start() time.Time { return c.f.start }

// Moved implements auto.Conn.
func (c autoConn) Moved() (bytes, moves uint64) {
	return c.f.tx.Load() + c.f.rx.Load(), c.f.reads.Load() + c.f.writes.Load()
}

// Seen implements auto.Conn.
func (c autoConn) Seen() *auto.Seen { return &c.f.seen }
