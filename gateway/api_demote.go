package gateway

import (
	"github.com/smcgw/smcgw/gateway/admin"
	"github.com/smcgw/smcgw/gateway/config"
)

// Demote implements admin.Control.
func (g *gateway) Demote(q admin.DemoteQuery) (n int) {
	for _, f := range g.all() {
		v := f.view()
		if f.getState().Final() || v.carrier == config.CarrierNone || v.carrier == config.CarrierRelay || !q.Matches(f.id, v.carrier) {
			continue
		}
		f.post(func() { f.do(f.core.Leave(DemotedByOperator)) })
		n++
	}
	return n
}
