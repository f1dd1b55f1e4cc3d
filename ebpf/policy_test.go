package ebpf

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/smcgw/smcgw/ebpf/internal/policy"
)

// naive decides without masks: it walks the rules. It is the model of Decide and
// of the programs.
func naive(rules []Rule, never []uint16, q Query) Verdict {
	excluded := NoRule
	sole := func(r Rule) bool { return r.Sole && r.Proto == q.Proto && slices.Contains(r.Ports, q.Port) }
	taken := slices.ContainsFunc(rules, sole)
	for i, r := range rules {
		if !naiveMatch(r, q) || taken && !sole(r) {
			continue
		}
		if r.Action != ActionPass && !slices.Contains(r.Ports, q.Port) && slices.Contains(never, q.Port) {
			if excluded == NoRule {
				excluded = i
			}
			continue
		}
		if r.Action == ActionAccelerate && naiveOutside(r, q) {
			return Verdict{Rule: i, Reason: ReasonCanary}
		}
		if r.Action == ActionAccelerate {
			return Verdict{Rule: i, Action: r.Action}
		}
		if excluded != NoRule {
			return Verdict{Rule: excluded, Reason: ReasonNeverList}
		}
		if r.Action == ActionNotWorthIt {
			return Verdict{Rule: i, Reason: ReasonNotWorthIt}
		}
		return Verdict{Rule: i, Reason: ReasonPolicy}
	}
	if excluded != NoRule {
		return Verdict{Rule: excluded, Reason: ReasonNeverList}
	}
	return Verdict{Rule: NoRule, Reason: ReasonPolicy}
}

func naiveMatch(r Rule, q Query) bool {
	if r.Proto != q.Proto {
		return false
	}
	if q.Inbound && (r.Direction == DirectionClient || len(r.UIDs)+len(r.Cgroups) > 0) || !q.Inbound && r.Direction == DirectionServer {
		return false
	}
	within := func(p PortRange) bool { return p.First <= q.Port && q.Port <= p.Last }
	if len(r.Ports)+len(r.Ranges) > 0 && !slices.Contains(r.Ports, q.Port) && !slices.ContainsFunc(r.Ranges, within) {
		return false
	}
	if len(r.Peers) > 0 && !slices.ContainsFunc(r.Peers, func(p netip.Prefix) bool { return p.Contains(q.Peer) }) {
		return false
	}
	if len(r.UIDs) > 0 && !slices.Contains(r.UIDs, q.UID) {
		return false
	}
	return len(r.Cgroups) == 0 || slices.ContainsFunc(r.Cgroups, func(c string) bool {
		return q.Cgroup == c || strings.HasPrefix(q.Cgroup, c+"/")
	})
}

// naiveOutside: a rule has no share here, or one that its place decides.
func naiveOutside(r Rule, q Query) bool {
	if r.Share == ShareDefault || !q.Local.IsValid() {
		return false
	}
	return r.Share == ShareNone || r.Share != ShareAll && policy.Place(q.Local, q.Remote) >= uint32(r.Share)
}

var (
	testNever    = []uint16{22, 53}
	testPorts    = []uint16{22, 53, 80, 6379, 9000}
	testRanges   = []PortRange{{First: 20, Last: 80}, {First: 53, Last: 53}, {First: 6000, Last: 9000}}
	testPrefixes = []netip.Prefix{
		netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("10.77.0.0/16"), netip.MustParsePrefix("10.77.3.0/24"),
		netip.MustParsePrefix("10.77.3.7/32"), netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("192.0.2.0/25"),
		netip.MustParsePrefix("fd77::/16"), netip.MustParsePrefix("fd77:0:0:3::/64"), netip.MustParsePrefix("::/0"),
	}
	testPeers = []netip.Addr{
		netip.MustParseAddr("10.77.3.7"), netip.MustParseAddr("10.77.3.8"), netip.MustParseAddr("10.77.9.9"),
		netip.MustParseAddr("10.1.1.1"), netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.200"),
		netip.MustParseAddr("fd77::9"), netip.MustParseAddr("fd77:0:0:3::1"), netip.MustParseAddr("2001:db8::1"),
	}
	testUIDs    = []uint32{0, 7, 1000}
	testCgroups = []string{"/a", "/a/b", "/c"}
	testPlaces  = []string{"/", "/a", "/a/b", "/a/b/c", "/a/x", "/c", "/cc"}
)

// some draws a short list, often empty.
func some[T any](t *rapid.T, label string, from []T) []T {
	n := rapid.SampledFrom([]int{0, 0, 1, 1, 2, 3}).Draw(t, label+"_n")
	return rapid.SliceOfN(rapid.SampledFrom(from), n, n).Draw(t, label)
}

// drawRules draws a policy.
func drawRules(t *rapid.T) []Rule {
	n := rapid.IntRange(0, 12).Draw(t, "rules")
	rules := make([]Rule, n)
	for i := range rules {
		rules[i] = Rule{
			Ports: some(t, "ports", testPorts), Ranges: some(t, "ranges", testRanges), Peers: some(t, "peers", testPrefixes),
			Action: Action(rapid.IntRange(0, 2).Draw(t, "action")), Proto: Proto(rapid.IntRange(0, 1).Draw(t, "proto")),
			Sole: rapid.IntRange(0, 5).Draw(t, "sole") == 0, Share: rapid.SampledFrom([]Share{0, 0, ShareNone, ShareAll, ShareOf(50)}).Draw(t, "share"),
		}
		if rapid.IntRange(0, 3).Draw(t, "caller") == 0 {
			rules[i].UIDs, rules[i].Cgroups = some(t, "uids", testUIDs), some(t, "cgroups", testCgroups)
		}
		if len(rules[i].UIDs)+len(rules[i].Cgroups) == 0 {
			rules[i].Direction = Direction(rapid.IntRange(0, 2).Draw(t, "direction"))
		}
	}
	return rules
}

func TestPolicyModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rules := drawRules(t)
		p, err := CompilePolicy(rules, testNever)
		require.NoError(t, err)
		for range 20 {
			q := Query{
				Proto:   Proto(rapid.IntRange(0, 1).Draw(t, "proto")),
				Inbound: rapid.Bool().Draw(t, "inbound"), Peer: rapid.SampledFrom(testPeers).Draw(t, "peer"),
				Port: rapid.SampledFrom(append(testPorts, 1)).Draw(t, "port"),
				UID:  rapid.SampledFrom(append(testUIDs, 9)).Draw(t, "uid"), Cgroup: rapid.SampledFrom(testPlaces).Draw(t, "cgroup"),
			}
			if rapid.Bool().Draw(t, "ends") {
				q.Local = netip.AddrPortFrom(netip.MustParseAddr("10.77.3.1"), rapid.Uint16().Draw(t, "local"))
				q.Remote = netip.AddrPortFrom(q.Peer, q.Port)
			}
			require.Equal(t, naive(rules, testNever, q), p.Decide(q), "%+v", q)
		}
	})
}
