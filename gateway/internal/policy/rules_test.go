package policy

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/ebpf"
	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/report"
)

// fakePolicy keeps the rules, or refuses them.
type fakePolicy struct {
	rules  []ebpf.Rule
	refuse error
}

func (f *fakePolicy) SetPolicy(rules []ebpf.Rule) error {
	if f.refuse == nil {
		f.rules = rules
	}
	return f.refuse
}

var errUnwritten = errors.New("map update: no such file")

var trialPeer = netip.MustParseAddr("10.0.0.2")

func testRules(steer *fakePolicy) *Rules {
	return NewRules(config.Config{Policy: []config.Rule{
		{Name: "redis", Match: config.Match{Ports: config.Ports(6379)}, Action: report.ActionAccelerate},
		{Name: "dns", Match: config.Match{Proto: report.ProtoUDP, Ports: config.Ports(5000)}, Action: report.ActionAccelerate},
		{Name: "rest"},
	}}.WithDefaults(), steer)
}

func TestTrialComesBehindTheRules(t *testing.T) {
	steer := &fakePolicy{}
	rs := testRules(steer)
	end, err := rs.Try(config.Trial{Peer: netip.MustParseAddr("::ffff:10.0.0.2"), Port: 4792, Action: report.ActionAccelerate, Carrier: report.CarrierSoft})
	require.NoError(t, err)
	rules := steer.rules
	require.Len(t, rules, 4)
	require.Equal(t, ebpf.Rule{
		Ports: []uint16{4792}, Peers: []netip.Prefix{netip.MustParsePrefix("10.0.0.2/32")}, Action: ebpf.ActionAccelerate, Sole: true, Share: ebpf.ShareAll,
	}, rules[3])

	inProcess, err := rs.Try(config.Trial{Peer: trialPeer, Port: 4794, Action: report.ActionAccelerate, Way: report.WayInProcess})
	require.NoError(t, err)
	require.Equal(t, ebpf.ActionPass, steer.rules[4].Action)
	require.Len(t, rs.Trials(), 2)
	inProcess()

	// The programs find it although a rule before it matches everything.
	p, err := ebpf.CompilePolicy(rules, nil)
	require.NoError(t, err)
	require.Equal(t, ebpf.Verdict{Rule: 3, Action: ebpf.ActionAccelerate}, p.Decide(ebpf.Query{Peer: trialPeer, Port: 4792}))
	require.Equal(t, 2, p.Decide(ebpf.Query{Peer: trialPeer, Port: 4793}).Rule)

	// It is of its peer's connections to its service only.
	require.Equal(t, report.CarrierSoft, rs.TrialOf(trialPeer, 4792).Carrier)
	require.Nil(t, rs.TrialOf(trialPeer, 4793))
	require.Nil(t, rs.TrialOf(netip.MustParseAddr("10.0.0.3"), 4792))

	_, err = rs.Try(config.Trial{Peer: netip.MustParseAddr("10.0.0.3"), Port: 4792, Action: report.ActionPass})
	require.ErrorIs(t, err, config.ErrTrialHeld)
	end()
	end()
	require.Len(t, steer.rules, 3)
	again, err := rs.Try(config.Trial{Peer: trialPeer, Port: 4792, Action: report.ActionPass})
	require.NoError(t, err)
	again()
}

func TestTrialsAreRefused(t *testing.T) {
	steer := &fakePolicy{}
	rs := testRules(steer)
	good := config.Trial{Peer: trialPeer, Port: 4792, Action: report.ActionAccelerate}
	for field, edits := range map[string][]func(*config.Trial){
		"peer": {
			func(t *config.Trial) { t.Peer = netip.Addr{} },
			func(t *config.Trial) { t.Peer = netip.MustParseAddr("fe80::1%eth0") },
			func(t *config.Trial) { t.Peer = netip.MustParseAddr("0.0.0.0") },
			func(t *config.Trial) { t.Peer = netip.MustParseAddr("ff02::1") },
		},
		"port":    {func(t *config.Trial) { t.Port = 0 }, func(t *config.Trial) { t.Port = 22 }, func(t *config.Trial) { t.Port = 6379 }},
		"action":  {func(t *config.Trial) { t.Action = "" }, func(t *config.Trial) { t.Action = report.ActionAuto }},
		"way":     {func(t *config.Trial) { t.Way = report.WayNative }},
		"carrier": {func(t *config.Trial) { t.Carrier = report.CarrierRelay }, func(t *config.Trial) { t.Carrier = "shm" }},
	} {
		for _, edit := range edits {
			bad := good
			edit(&bad)
			_, err := rs.Try(bad)
			var te *config.TrialError
			require.ErrorAs(t, err, &te)
			require.Equal(t, field, te.Field)
		}
	}
	require.Nil(t, steer.rules)

	good.Port = 5000 // a rule for datagrams is about no connection
	end, err := rs.Try(good)
	require.NoError(t, err)
	end()
	steer.refuse = errUnwritten
	_, err = rs.Try(good)
	require.ErrorIs(t, err, errUnwritten)
	steer.refuse = nil
	var ends []func()
	for i := range maxTrials {
		good.Port = uint16(8000 + i)
		end, err := rs.Try(good)
		require.NoError(t, err)
		ends = append(ends, end)
	}
	good.Port++
	_, err = rs.Try(good)
	require.ErrorContains(t, err, "no room")
	for _, end := range ends {
		end()
	}
}

// The rule of an opt-in decides before all others, and is about its cgroup only.
func TestOptIn(t *testing.T) {
	steer, mount := &fakePolicy{}, t.TempDir()
	rs := testRules(steer)
	require.NoError(t, os.Mkdir(filepath.Join(mount, "a*b"), 0o700))
	var st unix.Stat_t
	require.NoError(t, unix.Stat(filepath.Join(mount, "a*b"), &st))
	end, err := rs.OptIn(config.OptIn{Cgroup: "/a*b", ID: st.Ino}, mount)
	require.NoError(t, err)
	require.Len(t, steer.rules, 4)
	require.Equal(t, ebpf.Rule{Cgroups: []string{`/a\*b`}, Action: ebpf.ActionAccelerate, Share: ebpf.ShareAll}, steer.rules[0])
	require.Equal(t, 1, rs.Ahead())
	_, err = ebpf.CompilePolicy(steer.rules, nil)
	require.NoError(t, err)
	end()
	require.Len(t, steer.rules, 3)
	require.Zero(t, rs.Ahead())

	for _, bad := range []config.OptIn{{Cgroup: "/a*b", ID: st.Ino + 1}, {Cgroup: "/none", ID: 1}, {Cgroup: "a", ID: 1}, {Cgroup: "/", ID: 1}, {Cgroup: "/x/../a*b", ID: st.Ino}} {
		_, err := rs.OptIn(bad, mount)
		require.ErrorIs(t, err, config.ErrOptIn)
	}
	for range maxOptIns {
		_, err := rs.OptIn(config.OptIn{Cgroup: "/a*b", ID: st.Ino}, mount)
		require.NoError(t, err)
	}
	_, err = rs.OptIn(config.OptIn{Cgroup: "/a*b", ID: st.Ino}, mount)
	require.ErrorIs(t, err, config.ErrOptIn)
	steer.refuse = errUnwritten
	rs = testRules(steer)
	_, err = rs.OptIn(config.OptIn{Cgroup: "/a*b", ID: st.Ino}, mount)
	require.ErrorIs(t, err, errUnwritten)
	require.Zero(t, rs.Ahead())
}

// autoConfig has a rule with action auto before one that carries.
func autoConfig() config.Config {
	return config.Config{Policy: []config.Rule{
		{Name: "redis", Match: config.Match{Ports: config.Ports(6379)}, Action: report.ActionAuto},
		{Name: "rings", Match: config.Match{Ports: config.Ports(6380)}, Action: report.ActionAuto, Way: report.WayInProcess},
		{Name: "rest", Action: report.ActionAccelerate},
	}}.WithDefaults()
}

// TestAutoIsARule: without an adapter all that a rule with action auto matches is native, in
// both directions, whatever rules come after it; with one it carries as accelerate does.
func TestAutoIsARule(t *testing.T) {
	peer := netip.MustParseAddr("10.0.0.2")
	for _, inbound := range []bool{false, true} {
		for adapters, want := range map[bool]ebpf.Verdict{
			false: {Rule: 0, Action: ebpf.ActionPass, Reason: ebpf.ReasonNotWorthIt},
			true:  {Rule: 0, Action: ebpf.ActionAccelerate},
		} {
			p, err := ebpf.CompilePolicy(Translate(autoConfig(), adapters, nil).Policy, nil)
			require.NoError(t, err)
			require.Equal(t, want, p.Decide(ebpf.Query{Peer: peer, Port: 6379, Inbound: inbound}))
			require.Equal(t, ebpf.Verdict{Rule: 1, Reason: ebpf.ReasonPolicy}, p.Decide(ebpf.Query{Peer: peer, Port: 6380, Inbound: inbound}))
			require.Equal(t, ebpf.Verdict{Rule: 2, Action: ebpf.ActionAccelerate}, p.Decide(ebpf.Query{Peer: peer, Port: 80, Inbound: inbound}))
		}
	}
}

// TestAutoFollows: adapters that come and go change what the rules do, those of trials stay,
// and a datapath that refuses leaves everything as it was.
func TestAutoFollows(t *testing.T) {
	steer, cfg := &fakePolicy{}, autoConfig()
	rs := NewRules(cfg, steer)
	end, err := rs.Try(config.Trial{Peer: trialPeer, Port: 4792, Action: report.ActionAccelerate})
	require.NoError(t, err)
	defer end()
	require.Equal(t, ebpf.ActionNotWorthIt, steer.rules[0].Action)
	steer.refuse = errUnwritten
	require.ErrorIs(t, rs.Adapters(cfg, true), errUnwritten)
	steer.refuse = nil
	require.NoError(t, rs.Adapters(cfg, false))
	require.Equal(t, ebpf.ActionNotWorthIt, steer.rules[0].Action)
	require.NoError(t, rs.Adapters(cfg, true))
	require.Equal(t, ebpf.ActionAccelerate, steer.rules[0].Action)
	require.Len(t, steer.rules, 4)
	require.NoError(t, rs.Configure(cfg))
	require.Equal(t, ebpf.ActionAccelerate, steer.rules[0].Action)
}
