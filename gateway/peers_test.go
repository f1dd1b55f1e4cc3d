package gateway

import (
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/ebpf"
	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/internal/peers"
	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/negotiate"
)

// A host is listed once, with its carriers and what is remembered of it, and each of its
// ports beside it. One that only begins connections is listed, too.
func TestPeers(t *testing.T) {
	capable, blackholed, stranger := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("10.0.0.3")
	soft, now := []report.Carrier{report.CarrierSoft}, time.Now()
	failing := netip.MustParseAddr("10.0.0.5")
	table := peers.NewTable(config.Limits{})
	table.Proven(capable, report.CarrierShm)
	table.Proven(capable, report.CarrierSoft)
	for range 3 {
		table.Failed(capable, negotiate.CarrierSHM, now)
		table.Failed(failing, negotiate.CarrierSoft, now)
		now = now.Add(5 * time.Second)
	}
	list := listPeers(table.Known(now), []ebpf.Peer{
		{Addr: capable, Reason: uint8(negotiate.ReasonPeerDead), TTL: time.Second},
		{Addr: capable, Port: 80, Reason: uint8(negotiate.ReasonPeerRefused), TTL: time.Minute},
		{Addr: blackholed, Reason: uint8(negotiate.ReasonOptionBlackholed), TTL: time.Hour},
	}, map[netip.Addr]int{capable: 3}, map[netip.Addr]report.PeerUse{
		capable: {Begun: 2}, blackholed: {MemoryBytes: 7}, stranger: {Begun: 1}, netip.MustParseAddr("10.0.0.4"): {},
	})
	require.Equal(t, []report.PeerInfo{
		{Address: capable, State: report.PeerIncapable, Reason: "peer_dead", ExpiresSeconds: 1, Carriers: soft, CarriersFailed: []report.Carrier{report.CarrierShm}, Flows: 3, Use: report.PeerUse{Begun: 2}},
		{Address: capable, Port: 80, State: report.PeerIncapable, Reason: "peer_refused", ExpiresSeconds: 60},
		{Address: blackholed, State: report.PeerBlackholed, Reason: "option_blackholed", ExpiresSeconds: 3600, Use: report.PeerUse{MemoryBytes: 7}},
		{Address: stranger, State: report.PeerUnknown, Use: report.PeerUse{Begun: 1}},
		{Address: failing, State: report.PeerUnknown, CarriersFailed: soft},
	}, list)
}

func TestHealth(t *testing.T) {
	require.Equal(t, []report.BlockedLegs{{Device: "eth0", Family: "ipv6", At: "input"}, {At: "keeper"}},
		listBlockedLegs([]ebpf.BlockedLegs{{Device: "eth0", IPv6: true, Way: "input"}}, true))
}
