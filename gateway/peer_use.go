package gateway

import (
	"net/netip"

	"github.com/smcgw/smcgw/gateway/internal/carrier"
	"github.com/smcgw/smcgw/gateway/internal/peers"
	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/rmb"
)

// usePerPeer returns the resources that each address uses.
func usePerPeer(table *peers.Table, pool *rmb.Pool, providers []carrier.Provider) map[netip.Addr]report.PeerUse {
	all := map[netip.Addr]report.PeerUse{}
	for a, holds := range table.Use() {
		all[a] = report.PeerUse{Begun: holds.Flows, Handshakes: holds.Handshakes}
	}
	for owner, st := range pool.Owners() {
		if a, ok := owner.(netip.Addr); ok {
			u := all[a]
			u.MemoryBytes = uint64(st.Reserved)
			all[a] = u
		}
	}
	for _, prov := range providers {
		if s, ok := prov.(*carrier.Shm); ok {
			for _, p := range s.Peers() {
				u := all[p.Of]
				u.ShmPeers++
				all[p.Of] = u
			}
		}
	}
	return all
}

// sharesRefused returns, by resource, how often an address wanted more than its share.
func (e *engine) sharesRefused() map[string]uint64 {
	all := map[string]uint64{}
	for _, r := range peers.Resources() {
		all[string(r)] = 0
	}
	if e == nil {
		return all
	}
	for r, n := range e.peers.Refusals() {
		all[string(r)] = n
	}
	all[string(peers.ResourceMemory)] += e.pool.Stats().RefusedQuota
	return all
}
