package report

import (
	"net/netip"
	"slices"

	"github.com/smcgw/smcgw/ebpf"
	"github.com/smcgw/smcgw/gateway/admin"
	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/internal/carrier"
	"github.com/smcgw/smcgw/gateway/internal/peers"
	"github.com/smcgw/smcgw/negotiate"
	"github.com/smcgw/smcgw/rmb"
)

// Peers lists hosts: the known ones with carriers that work, what the programs remember of
// them, how many connections each has, and what it holds.
func Peers(known map[netip.Addr][]config.Carrier, remembered []ebpf.Peer, flows map[netip.Addr]int, use map[netip.Addr]admin.PeerUse) []admin.PeerInfo {
	var list []admin.PeerInfo
	capable := map[netip.Addr]int{} // where in list
	for a, carriers := range known {
		capable[a] = len(list)
		list = append(list, admin.PeerInfo{Address: a, State: admin.PeerCapable, Carriers: carriers, Flows: flows[a], Use: use[a]})
		delete(use, a)
	}
	for i := range remembered {
		info := peerInfo(&remembered[i])
		if at, ok := capable[info.Address]; ok && info.Port == 0 {
			list[at] = withRefusal(list[at], info)
			continue
		}
		if info.Port == 0 {
			info.Use = use[info.Address]
			delete(use, info.Address)
		}
		list = append(list, info)
	}
	for a, u := range use { // nothing else is known of these
		if u.Begun > 0 {
			list = append(list, admin.PeerInfo{Address: a, State: admin.PeerUnknown, Flows: flows[a], Use: u})
		}
	}
	slices.SortFunc(list, func(a, b admin.PeerInfo) int {
		if c := a.Address.Compare(b.Address); c != 0 {
			return c
		}
		return int(a.Port) - int(b.Port)
	})
	return list
}

// withRefusal is what is known of a host that is capable, and is left alone for a while.
func withRefusal(host, refusal admin.PeerInfo) admin.PeerInfo {
	if refusal.State != admin.PeerUnknown {
		host.State, host.Reason, host.ExpiresSeconds = refusal.State, refusal.Reason, refusal.ExpiresSeconds
	}
	return host
}

func peerInfo(p *ebpf.Peer) admin.PeerInfo {
	info := admin.PeerInfo{Address: p.Addr, Port: p.Port, State: admin.PeerUnknown, ExpiresSeconds: p.TTL.Seconds()}
	if p.TTL <= 0 {
		return info
	}
	r := negotiate.Reason(p.Reason)
	info.Reason = r.String()
	switch r {
	case negotiate.ReasonOptionBlackholed:
		info.State = admin.PeerBlackholed
	default:
		info.State = admin.PeerIncapable
	}
	return info
}

// PeerUse returns what each address holds.
func PeerUse(table *peers.Table, pool *rmb.Pool, fabrics []carrier.Fabric) map[netip.Addr]admin.PeerUse {
	all := map[netip.Addr]admin.PeerUse{}
	for a, holds := range table.Use() {
		all[a] = admin.PeerUse{Begun: holds.Flows, Handshakes: holds.Handshakes}
	}
	for owner, st := range pool.Owners() {
		if a, ok := owner.(netip.Addr); ok {
			u := all[a]
			u.MemoryBytes = uint64(st.Reserved)
			all[a] = u
		}
	}
	for _, fb := range fabrics {
		if sf, ok := fb.(*carrier.Shm); ok {
			for _, p := range sf.Peers() {
				u := all[p.Of]
				u.ShmPeers++
				all[p.Of] = u
			}
		}
	}
	return all
}

// SharesRefused returns how often an address wanted more than its share.
func SharesRefused(table *peers.Table, pool *rmb.Pool) map[string]uint64 {
	all := map[string]uint64{}
	for r, n := range table.Refusals() {
		all[string(r)] = n
	}
	all[string(peers.ResourceMemory)] += pool.Stats().RefusedQuota
	return all
}
