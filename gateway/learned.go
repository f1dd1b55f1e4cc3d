package gateway

import (
	"slices"
	"time"

	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/internal/auto"
	"github.com/smcgw/smcgw/gateway/internal/conn"
)

// newAutoBook returns nil if no rule has action auto, or nothing is carried.
func newAutoBook(g *gateway) *auto.Book {
	if !g.carries() || !slices.ContainsFunc(g.cfg.Policy, func(r config.Rule) bool { return r.Action == config.ActionAuto }) {
		return nil
	}
	return auto.NewBook(g.steer, g.cfg.Fallback.NegativeCache, g.host.Paces, g.log)
}

// learnsFrom reports whether connections of the rule with this number are learned
// from: a client's, of a rule with action auto.
func (g *gateway) learnsFrom(rule int) bool {
	if g.env.Auto == nil {
		return false
	}
	_, action := g.live.Load().rule(rule)
	return action == config.ActionAuto
}

// learn looks at the flows that go on.
func (g *gateway) learn(flows []*conn.Flow, now time.Time) {
	if g.env.Auto == nil {
		return
	}
	for _, f := range flows {
		f.Learn(now)
	}
	g.env.Auto.Compare(now)
}
