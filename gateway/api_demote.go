package gateway

import (
	"slices"

	"github.com/smcgw/smcgw/gateway/config"
)

// DemoteQuery says which connections are to leave their queue pairs. A connection
// that matches every field that is set is asked; All alone means each of them.
type DemoteQuery struct {
	// IDs are those of conns.
	IDs []uint64 `json:"ids,omitempty"`
	// Carrier is rdma-shm or rdma-soft.
	Carrier config.Carrier `json:"carrier,omitempty"`
	All     bool           `json:"all,omitempty"`
}

// problem says why a query cannot be meant, or nothing.
func (q DemoteQuery) problem() string {
	switch {
	case !q.All && len(q.IDs) == 0 && q.Carrier == config.CarrierNone:
		return "no connection is named: ids, carrier or all"
	case q.All && len(q.IDs) > 0:
		return "all and ids exclude each other"
	case q.Carrier != config.CarrierNone && (q.Carrier == config.CarrierRelay || !slices.Contains(config.Carriers(), q.Carrier)):
		return "carrier: " + string(q.Carrier) + " is none that can be left"
	}
	return ""
}

func (q DemoteQuery) matches(id uint64, by config.Carrier) bool {
	return (len(q.IDs) == 0 || slices.Contains(q.IDs, id)) && (q.Carrier == config.CarrierNone || q.Carrier == by)
}

// Demote implements Control.
func (g *gateway) Demote(q DemoteQuery) (n int) {
	for _, f := range g.all() {
		f.mu.Lock()
		c := f.picked
		asked := c != nil && f.relay == nil && !f.ended && q.matches(f.id, f.carrier)
		f.mu.Unlock()
		if asked {
			c.s.post(func() {
				c.s.worksFor(f)
				c.demote(DemotedByOperator)
			})
			n++
		}
	}
	return n
}
