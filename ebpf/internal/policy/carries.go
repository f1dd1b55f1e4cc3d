package policy

import "net/netip"

// Carries reports whether some rule may carry connections with a host in prefix q.
func (p *Policy) Carries(q netip.Prefix) bool {
	for i := range p.rules {
		r := &p.rules[i]
		if r.Action == ActionPass {
			continue
		}
		if len(r.Peers) == 0 {
			return true
		}
		for _, peer := range r.Peers {
			if peer.Overlaps(q) {
				return true
			}
		}
	}
	return false
}
