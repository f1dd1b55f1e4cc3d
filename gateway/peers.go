package gateway

import (
	"net/netip"
	"slices"

	"github.com/smcgw/smcgw/ebpf"
	"github.com/smcgw/smcgw/gateway/internal/carrier"
	"github.com/smcgw/smcgw/gateway/internal/peers"
	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/negotiate"
	"github.com/smcgw/smcgw/rmb"
)

// listPeers lists all hosts about which something is known: the carriers proven and failed,
// what the programs remember, how many flows are carried, and the resources in use. It
// removes listed hosts from use.
func listPeers(known map[netip.Addr]peers.Known, remembered []ebpf.Peer, flows map[netip.Addr]int, use map[netip.Addr]report.PeerUse) []report.PeerInfo {
	var list []report.PeerInfo
	listed := map[netip.Addr]int{} // index in list
	for a, by := range known {
		listed[a] = len(list)
		info := report.PeerInfo{Address: a, State: report.PeerUnknown, Flows: flows[a], Use: use[a], CarriersFailed: by.Failed, Version: by.Software, Mode: by.Mode}
		if len(by.Proven) > 0 {
			info.State = report.PeerCapable
		}
		for _, c := range by.Proven {
			if !slices.Contains(by.Failed, c) {
				info.Carriers = append(info.Carriers, c)
			}
		}
		list = append(list, info)
		delete(use, a)
	}
	for i := range remembered {
		info := peerInfo(&remembered[i])
		if at, ok := listed[info.Address]; ok && info.Port == 0 {
			list[at] = withRefusal(list[at], info)
			continue
		}
		if info.Port == 0 {
			info.Use = use[info.Address]
			delete(use, info.Address)
		}
		list = append(list, info)
	}
	for a, u := range use { // hosts about which nothing else is known
		if u.Begun > 0 {
			list = append(list, report.PeerInfo{Address: a, State: report.PeerUnknown, Flows: flows[a], Use: u})
		}
	}
	slices.SortFunc(list, func(a, b report.PeerInfo) int {
		if c := a.Address.Compare(b.Address); c != 0 {
			return c
		}
		return int(a.Port) - int(b.Port)
	})
	return list
}

// countPeers sets the totals of the listed peers.
func countPeers(s *report.Snapshot, list []report.PeerInfo) {
	hosts := map[netip.Addr]bool{}
	for i := range list {
		s.Peers[list[i].State]++
		hosts[list[i].Address] = true
	}
	s.Hosts = len(hosts)
}

// withRefusal adds to an entry of a host that it is left native for a while.
func withRefusal(host, refusal report.PeerInfo) report.PeerInfo {
	if refusal.State != report.PeerUnknown {
		host.State, host.Reason, host.ExpiresSeconds = refusal.State, refusal.Reason, refusal.ExpiresSeconds
	}
	return host
}

func peerInfo(p *ebpf.Peer) report.PeerInfo {
	info := report.PeerInfo{Address: p.Addr, Port: p.Port, State: report.PeerUnknown, ExpiresSeconds: p.TTL.Seconds()}
	if p.TTL <= 0 {
		return info
	}
	r := negotiate.Reason(p.Reason)
	info.Reason = r.String()
	switch r {
	case negotiate.ReasonOptionBlackholed:
		info.State = report.PeerBlackholed
	default:
		info.State = report.PeerIncapable
	}
	return info
}

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
