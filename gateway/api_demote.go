package gateway

import "github.com/smcgw/smcgw/gateway/admin"

// Demote implements admin.Control.
func (g *gateway) Demote(q admin.DemoteQuery) (n int) {
	for _, f := range g.all() {
		f.mu.Lock()
		c := f.picked
		asked := c != nil && f.relay == nil && !f.ended && q.Matches(f.id, f.carrier)
		f.mu.Unlock()
		if asked {
			c.Shard.Post(func() {
				c.Shard.WorksFor(f)
				c.demote(DemotedByOperator)
			})
			n++
		}
	}
	return n
}
