package policy

import (
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/ebpf"
	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/report"
)

func ruleName(i int) string {
	switch {
	case i == ebpf.NoRule:
		return "default"
	case i > 1:
		return "trial"
	}
	return []string{"a", "b"}[i]
}

// What the programs saw bit by bit is added up by side, port and rule.
func TestObserved(t *testing.T) {
	var b Observed
	h1, h2 := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("fd00::2")
	for range 2 {
		b.Add([]ebpf.Seen{
			{Side: ebpf.SideClient, Host: h2, Port: 5201, Rule: 1, Carries: true, Begun: 1, Ended: 1, Sent: 1 << 30, Bulk: 1, BulkBytes: 1 << 30, BulkLasted: time.Second},
			{Side: ebpf.SideClient, Host: h1, Port: 5201, Rule: 1, Carries: true, Begun: 1},
			{Side: ebpf.SideServer, Host: h1, Port: 80, Rule: ebpf.NoRule, Begun: 10, Ended: 10, Sent: 1 << 20, Received: 1 << 20, Bulk: 1, BulkBytes: 3 << 19, BulkLasted: time.Second},
			{Side: ebpf.SideClient, Host: h1, Port: 6379, Rule: 0, Begun: 3, Ended: 3, Sent: 5000, Received: 9000},
			{Side: ebpf.SideClient, Host: h1, Port: 7000, Rule: 0, Past: true, Begun: 1},
		}, ruleName)
	}
	require.Equal(t, []report.ObservedService{
		{
			Side: report.SideClient, Port: 5201, Rule: "b", Carries: true, Hosts: []netip.Addr{h1, h2}, Connections: 4, Ended: 2,
			Bytes: report.ByteCount{Tx: 2 << 30}, Bulk: 2, BulkBytes: 2 << 30, BulkBytesPerSecond: 1 << 30,
		},
		{
			Side: report.SideServer, Port: 80, Rule: "default", Hosts: []netip.Addr{h1}, Connections: 20, Ended: 20,
			Bytes: report.ByteCount{Tx: 2 << 20, Rx: 2 << 20}, Bulk: 2, BulkBytes: 3 << 20, BulkBytesPerSecond: 3 << 19,
		},
		{
			Side: report.SideClient, Port: 6379, Rule: "a", Hosts: []netip.Addr{h1}, Connections: 6, Ended: 6,
			Bytes: report.ByteCount{Tx: 10000, Rx: 18000},
		},
		{Side: report.SideClient, Port: 7000, Hosts: []netip.Addr{h1}, Connections: 2},
	}, b.List())
	require.Zero(t, b.lost())
}

// The book has a bound, and counts what it has no room for.
func TestObservedIsBounded(t *testing.T) {
	var b Observed
	for port := range uint16(maxServices + 10) {
		b.Add([]ebpf.Seen{{Port: port, Rule: ebpf.NoRule, Begun: 2}}, ruleName)
	}
	require.Len(t, b.List(), maxServices)
	require.EqualValues(t, 20, b.lost())
	for i := range byte(maxHosts + 5) {
		b.Add([]ebpf.Seen{{Port: 0, Host: netip.AddrFrom4([4]byte{10, 0, 0, i}), Rule: ebpf.NoRule, Begun: 1}}, ruleName)
	}
	first := b.List()[0]
	require.EqualValues(t, 2+maxHosts+5, first.Connections)
	require.Len(t, first.Hosts, maxHosts)
	require.True(t, first.MoreHosts)
}

// A full book looks for room once for all that comes at a time: a scan of ports comes by the
// thousand.
func TestFullBookLooksForRoomOnce(t *testing.T) {
	var b Observed
	asked := 0
	rule := func(number int) string {
		asked++
		return ruleName(number)
	}
	see := func(from, to int) {
		var list []ebpf.Seen
		for port := from; port < to; port++ {
			list = append(list, ebpf.Seen{Port: uint16(port), Rule: ebpf.NoRule, Begun: 1})
		}
		b.Add(list, rule)
	}
	see(0, maxServices)
	asked = 0
	see(maxServices, 8*maxServices)
	require.EqualValues(t, 7*maxServices, b.lost())
	require.LessOrEqual(t, asked, 7*maxServices+ebpf.MaxRules+1)
}

// TestRulesThatAreGoneMakeRoom: a full book has room for the services of rules in force, as
// long as it has some of rules that are gone, the least of them first.
func TestRulesThatAreGoneMakeRoom(t *testing.T) {
	var b Observed
	see := func(port int, rule string, past bool) {
		b.Add([]ebpf.Seen{{Port: uint16(port), Rule: 0, Past: past, Begun: 1, Sent: uint64(port)}}, func(number int) string {
			if number == 0 {
				return rule
			}
			return "default"
		})
	}
	for port := range maxServices {
		see(port, "old", false)
	}
	see(2000, "old", true)
	require.EqualValues(t, 1, b.lost(), "its rule is gone, too")
	for port := range maxServices {
		see(3000+port, "new", false)
		require.Len(t, b.services, maxServices)
	}
	see(2000, "new", false)
	require.EqualValues(t, 1+maxServices+1, b.lost(), "each connection once")
	for _, s := range b.List() {
		require.Equal(t, "new", s.Rule)
	}
	see(2000, "newer", false)
	list := b.List()
	require.EqualValues(t, 3001, list[len(list)-2].Port, "3000 had the fewest bytes")
	require.EqualValues(t, 2000, list[len(list)-1].Port)
}

// TestRulesAreCountedFromTheStart: the first decision of a rule is an increase. Rules that
// are gone and decided nothing are not kept.
func TestRulesAreCountedFromTheStart(t *testing.T) {
	var b Decided
	var s report.Snapshot
	web, old := []config.Rule{{Name: "web", Action: report.ActionAccelerate}}, []config.Rule{{Name: "old", Action: report.ActionAuto}}
	b = b.Close(old, 0, nil)
	b.AddTo(&s, web, 0, nil)
	require.Equal(t, []report.DecisionCount{{Action: report.ActionAccelerate, Rule: "web"}}, s.Decisions)
}

// TestDecisionsByName: rules have their names, what no rule matched counts with
// a last rule that says so, and no two series are the same.
func TestDecisionsByName(t *testing.T) {
	rules := []config.Rule{
		{Name: "redis", Action: report.ActionAccelerate}, {Name: "bulk", Action: report.ActionAuto}, {Name: "default", Action: report.ActionPass},
	}
	var b Decided
	var s report.Snapshot
	b.AddTo(&s, rules, 1, []ebpf.Decided{
		{Rule: 0, Accelerate: 8}, {Rule: 1, Accelerate: 5, Pass: 1}, {Rule: 2, Accelerate: 2}, {Rule: 3, Pass: 3}, {Rule: 4, Accelerate: 9}, {Rule: ebpf.NoRule, Pass: 4},
	})
	require.ElementsMatch(t, []report.DecisionCount{
		{Action: report.ActionAccelerate, Rule: OptInRule, Count: 8},
		{Action: report.ActionAccelerate, Rule: TrialRule, Count: 9},
		{Action: report.ActionAccelerate, Rule: "redis", Count: 5},
		{Action: report.ActionPass, Rule: "redis", Count: 1},
		{Action: report.ActionAuto, Rule: "bulk", Count: 2},
		{Action: report.ActionPass, Rule: "default", Count: 7},
	}, s.Decisions)
}
