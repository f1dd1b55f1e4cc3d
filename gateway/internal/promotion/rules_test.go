package promotion

import (
	"net/netip"
	"os"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/ebpf"
	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/internal/policy"
	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/inprocess/broker"
	"github.com/smcgw/smcgw/lab/leak"
	"github.com/smcgw/smcgw/negotiate"
)

// pair is what the two ends of a connection ask.
func pair(port uint16, cgroup string) (client, server broker.Question) {
	c, s := netip.MustParseAddrPort("10.0.0.1:40000"), netip.AddrPortFrom(netip.MustParseAddr("10.0.0.2"), port)
	return broker.Question{Process: broker.Process{UID: 7, Cgroup: cgroup}, Socket: broker.Socket{Local: c, Remote: s, Role: broker.RoleClient}},
		broker.Question{Process: broker.Process{Cgroup: "/server"}, Socket: broker.Socket{Local: s, Remote: c, Role: broker.RoleServer}}
}

func TestRules(t *testing.T) {
	rule := func(r config.Rule) []config.Rule { return []config.Rule{r} }
	yes := report.ActionAccelerate
	for name, c := range map[string]struct {
		rules  []config.Rule
		port   uint16
		cgroup string
		wants  bool
	}{
		"none":              {nil, 80, "/a", false},
		"port":              {rule(config.Rule{Match: config.Match{Ports: config.Ports(80)}, Action: yes}), 80, "/a", true},
		"other port":        {rule(config.Rule{Match: config.Match{Ports: config.Ports(81)}, Action: yes}), 80, "/a", false},
		"auto":              {rule(config.Rule{Action: report.ActionAuto}), 80, "/a", true},
		"pass first":        {[]config.Rule{{Match: config.Match{Ports: config.Ports(80)}}, {Action: yes}}, 80, "/a", false},
		"datagrams":         {rule(config.Rule{Match: config.Match{Proto: report.ProtoUDP}, Action: yes}), 80, "/a", false},
		"steered only":      {rule(config.Rule{Action: yes, Way: report.WaySteered}), 80, "/a", false},
		"in process only":   {rule(config.Rule{Action: yes, Way: report.WayInProcess}), 80, "/a", true},
		"caller":            {rule(config.Rule{Match: config.Match{Cgroups: []string{"/a"}}, Action: yes}), 80, "/a", true},
		"other caller":      {rule(config.Rule{Match: config.Match{Cgroups: []string{"/b"}}, Action: yes}), 80, "/a", false},
		"caller passes":     {[]config.Rule{{Match: config.Match{Cgroups: []string{"/a"}}}, {Action: yes}}, 80, "/a", false},
		"another passes":    {[]config.Rule{{Match: config.Match{Cgroups: []string{"/b"}}}, {Action: yes}}, 80, "/a", true},
		"user":              {rule(config.Rule{Match: config.Match{Users: []config.User{{ID: 7}}}, Action: yes}), 80, "/a", true},
		"client's rule":     {rule(config.Rule{Match: config.Match{Direction: report.DirectionClient}, Action: yes}), 80, "/a", true},
		"server's rule":     {rule(config.Rule{Match: config.Match{Direction: report.DirectionServer}, Action: yes}), 80, "/a", true},
		"server passes":     {[]config.Rule{{Match: config.Match{Direction: report.DirectionServer}}, {Action: yes}}, 80, "/a", false},
		"never-list":        {rule(config.Rule{Action: yes}), 22, "/a", false},
		"never-list, named": {rule(config.Rule{Match: config.Match{Ports: config.Ports(22)}, Action: yes}), 22, "/a", true},
		"no share":          {rule(config.Rule{Action: yes, Percent: config.NoShare}), 80, "/a", false},
	} {
		t.Run(name, func(t *testing.T) {
			r, err := newRules(config.Config{Policy: c.rules}.WithDefaults(), ebpf.ShareAll, nil)
			require.NoError(t, err)
			client, server := pair(c.port, c.cgroup)
			require.Equal(t, c.wants, r.wants(client) && r.wants(server))
		})
	}
}

// TestPeerWithZone: a rule decides about its peers, link-local ones, too.
func TestPeerWithZone(t *testing.T) {
	c := config.Config{Policy: []config.Rule{
		{Match: config.Match{Peers: []netip.Prefix{netip.MustParsePrefix("fe80::/10")}}, Action: report.ActionPass}, {Action: report.ActionAccelerate},
	}}.WithDefaults()
	r, err := newRules(c, ebpf.ShareAll, nil)
	require.NoError(t, err)
	client, server := pair(80, "/a")
	require.True(t, r.wants(client) && r.wants(server))
	client.Socket.Remote = netip.MustParseAddrPort("[fe80::2%3]:80")
	server.Socket.Remote = netip.MustParseAddrPort("[fe80::1%3]:40000")
	require.False(t, r.wants(client))
	require.False(t, r.wants(server))
}

// TestTrialRules: a trial decides about its port and peer, whatever the rules say, and about the carrier between hosts.
func TestTrialRules(t *testing.T) {
	c := config.Config{Policy: []config.Rule{{Action: report.ActionPass}, {Action: report.ActionAccelerate}}}.WithDefaults()
	client, server := pair(4792, "/a")
	all := []negotiate.CarrierKind{negotiate.CarrierSHM, negotiate.CarrierSoft, negotiate.CarrierHW, negotiate.CarrierIB}
	for name, of := range map[string]struct {
		trial config.Trial
		wants bool
		by    []negotiate.CarrierKind // of all
	}{
		"any way":    {config.Trial{Action: report.ActionAccelerate}, true, all},
		"in process": {config.Trial{Action: report.ActionAccelerate, Way: report.WayInProcess}, true, all},
		"by soft":    {config.Trial{Action: report.ActionAccelerate, Way: report.WayInProcess, Carrier: report.CarrierSoft}, true, []negotiate.CarrierKind{negotiate.CarrierSoft}},
		"by hw":      {config.Trial{Action: report.ActionAccelerate, Carrier: report.CarrierHW}, true, []negotiate.CarrierKind{negotiate.CarrierHW}},
		"steered":    {config.Trial{Action: report.ActionAccelerate, Way: report.WaySteered}, false, nil},
		"pass":       {config.Trial{Action: report.ActionPass}, false, nil},
	} {
		t.Run(name, func(t *testing.T) {
			here, there := of.trial, of.trial
			here.Peer, here.Port = server.Socket.Local.Addr(), 4792
			there.Peer, there.Port = client.Socket.Local.Addr(), 4792
			r, err := newRules(c, ebpf.ShareNone, []*config.Trial{&here, &there})
			require.NoError(t, err)
			require.Equal(t, of.wants, r.wants(client))
			require.Equal(t, of.wants, r.wants(server))
			other, _ := pair(4793, "/a")
			require.False(t, r.wants(other))
			require.Equal(t, policy.TrialRule, r.name(client))
			for _, k := range all {
				if of.wants {
					require.Equal(t, slices.Contains(of.by, k), r.pays(client, k), "%v", k)
				}
			}
		})
	}
}

// TestShare: the rollout chooses connections, and each of them once.
func TestShare(t *testing.T) {
	r, err := newRules(config.Config{Policy: []config.Rule{{Action: report.ActionAccelerate}}}.WithDefaults(), ebpf.ShareOf(50), nil)
	require.NoError(t, err)
	in := 0
	for port := range uint16(1000) {
		client, server := pair(1000+port, "/a")
		require.True(t, r.wants(server), "the client's end decides")
		if r.wants(client) {
			in++
		}
	}
	require.InDelta(t, 500, in, 100)
}

func TestForecast(t *testing.T) {
	var f forecast
	client, server := pair(80, "/a")
	for range 3 {
		f.note(client.Socket)
	}
	require.Zero(t, f.count(), "the other end has not asked")
	for range 3 {
		f.note(server.Socket)
		f.note(client.Socket)
	}
	require.Equal(t, uint64(1), f.count())
	named := broker.Socket{Named: true, Sequences: broker.Sequences{Mine: 1, Peer: 2}}
	f.note(named)
	named.Sequences = broker.Sequences{Mine: 2, Peer: 1}
	f.note(named)
	require.Equal(t, uint64(2), f.count())
	for i := range uint32(5 * forecastSize) {
		f.note(broker.Socket{Named: true, Sequences: broker.Sequences{Mine: i, Peer: 3 << 30}})
	}
	require.LessOrEqual(t, len(f.now)+len(f.old), 2*forecastSize)
}

// TestMain fails the run if a test left a goroutine or a descriptor behind.
func TestMain(m *testing.M) { os.Exit(leak.Main(m)) }
