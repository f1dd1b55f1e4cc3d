package ebpf

import (
	"errors"
	"maps"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/smcgw/smcgw/ebpf/internal/policy"
	"github.com/smcgw/smcgw/internal/procfs"
	"github.com/smcgw/smcgw/internal/sockaddr"
)

// begin starts a connect() without waiting for it and returns its local
// address. The socket is closed when the test ends.
func (h *host) begin(family int, to netip.AddrPort) (local netip.AddrPort, err error) {
	h.t.Helper()
	fd := -1
	h.do(func() { fd, local, err = beginHere(family, to) })
	if fd >= 0 {
		h.t.Cleanup(func() { _ = unix.Close(fd) })
	}
	return local, err
}

// beginHere is begin on the calling thread.
func beginHere(family int, to netip.AddrPort) (int, netip.AddrPort, error) {
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, netip.AddrPort{}, err
	}
	if family == unix.AF_INET6 && to.Addr().Is4() {
		to = netip.AddrPortFrom(netip.AddrFrom16(to.Addr().As16()), to.Port()) // mapped
	}
	if err := unix.Connect(fd, sockaddr.Of(to)); err != nil && !errors.Is(err, unix.EINPROGRESS) {
		return fd, netip.AddrPort{}, err
	}
	local, err := sockaddr.Local(fd)
	return fd, local, err
}

// The option is on the first SYN only, and only of selected connections; IPv4,
// IPv6 and v4-mapped sockets.
func TestOfferOnSYN(t *testing.T) {
	t.Parallel()
	h1, h2 := newPair(t)
	h1.ghosts(h2)
	d := h1.open(config([]Rule{{Ports: []uint16{6379, 6380}, Action: ActionAccelerate}, {Action: ActionNotWorthIt}, {Ports: []uint16{7000}}}))
	require.NoError(t, d.SetPolicy([]Rule{
		{Ports: []uint16{7000}}, {Ports: []uint16{6379, 22}, Action: ActionAccelerate}, {Ports: []uint16{6380}, Action: ActionNotWorthIt},
	}))
	var replaced smcgwPolicyHead
	require.NoError(t, d.objs.Policy.Lookup(d.generation()^1, &replaced))
	require.Zero(t, replaced, "nothing matches a policy whose entries are gone")
	wire := h2.sniff("w0")
	for _, v := range []struct {
		name   string
		family int
		to     string
		offer  bool
	}{
		{"v4", unix.AF_INET, ghost4 + ":6379", true},
		{"v4, not worth it", unix.AF_INET, ghost4 + ":6380", false},
		{"v6, not worth it", unix.AF_INET6, "[" + ghost6 + "]:6380", false},
		{"v6", unix.AF_INET6, "[" + ghost6 + "]:6379", true},
		{"v4-mapped", unix.AF_INET6, "[::ffff:" + ghost4 + "]:6379", true},
		{"never-list port that is named", unix.AF_INET, ghost4 + ":22", true},
		{"port of a pass rule", unix.AF_INET, ghost4 + ":7000", false},
		{"port of no rule", unix.AF_INET, ghost4 + ":7001", false},
	} {
		to, begun := addrPort(v.to), time.Now()
		local, err := h1.begin(v.family, to)
		require.NoError(t, err, v.name)
		syn, ok := wire.next(patience, isSYN(to.Port()))
		require.True(t, ok, v.name)
		role, nonce, has := syn.offer()
		require.Equal(t, v.offer, has, v.name)
		f, err := d.Flow(Tuple{Local: local, Remote: netip.AddrPortFrom(to.Addr().Unmap(), to.Port())})
		if !v.offer {
			require.ErrorIs(t, err, ErrNoFlow, v.name)
			continue
		}
		require.NoError(t, err, v.name)
		require.EqualValues(t, roleOffer, role)
		require.Equal(t, nonce, f.Nonce)
		require.Equal(t, syn.seq, f.ISN)
		if time.Since(begun) <= refuseIn || f.State != StateReleased { // the kernel has repeated it since
			require.Equal(t, StateOffered, f.State)
		}
	}
	// The retransmission after one second is bare and releases the entry: an accept
	// that comes late is not the answer to it.
	local, err := h1.begin(unix.AF_INET, addrPort(ghost4+":6379"))
	require.NoError(t, err)
	mine := func(s segment) bool { return s.src == local }
	first, ok := wire.next(patience, mine)
	require.True(t, ok)
	_, _, has := first.offer()
	require.True(t, has)
	second, ok := wire.next(patience, mine)
	require.True(t, ok)
	_, _, has = second.offer()
	require.False(t, has)
	require.Equal(t, first.seq, second.seq)
	f, err := d.Flow(Tuple{Local: local, Remote: addrPort(ghost4 + ":6379")})
	require.NoError(t, err)
	require.Equal(t, StateReleased, f.State)
}

// Why an offer is withheld, and that each reason is told.
func TestOfferWithheld(t *testing.T) {
	t.Parallel()
	h1, h2 := newPair(t)
	h1.ghosts(h2)
	cfg := config([]Rule{{Action: ActionAccelerate}})
	d := h1.open(cfg)
	rec := record(t, d)
	peer := netip.MustParseAddr(ghost4)
	nothing := func() error { return nil }
	for _, v := range []struct {
		name   string
		to     string
		reason uint8
		setup  func() error
		undo   func() error
	}{
		{"never list", ghost4 + ":22", ReasonNeverList, nothing, nothing},
		{
			"off", ghost4 + ":6379", ReasonOff,
			func() error { return d.SetOff(true) }, func() error { return d.SetOff(false) },
		},
		{
			"observe", ghost4 + ":6379", ReasonMode,
			func() error { return d.SetMode(ModeObserve) }, func() error { return d.SetMode(ModeEnforce) },
		},
		{
			"peer", ghost4 + ":6379", 39,
			func() error { return d.Remember(peer, 0, 39, time.Minute) }, func() error { return d.Forget(peer, 0) },
		},
		{
			"peer and port", ghost4 + ":6379", 33,
			func() error { return d.Remember(peer, 6379, 33, time.Minute) }, func() error { return d.Forget(peer, 6379) },
		},
		{
			"policy", ghost4 + ":6379", ReasonPolicy,
			func() error { return d.SetPolicy(nil) }, func() error { return d.SetPolicy(cfg.Policy) },
		},
	} {
		require.NoError(t, v.setup(), v.name)
		to := addrPort(v.to)
		family := unix.AF_INET
		if to.Addr().Is6() {
			family = unix.AF_INET6
		}
		before := nativeCount(t, d, SideClient, v.reason)
		_, err := h1.begin(family, to)
		if err != nil {
			require.ErrorIs(t, err, unix.ECONNREFUSED, v.name)
		}
		require.Equal(t, before+1, nativeCount(t, d, SideClient, v.reason), v.name)
		rec.wait(t, 30*time.Second, func(e Event) bool { return e.Reason == v.reason && e.Tuple.Remote == to })
		require.NoError(t, v.undo(), v.name)
		require.Zero(t, stat(t, d, "offered"), v.name)
	}
	for _, to := range []string{"127.0.0.1:6379", "[::1]:6379", "10.77.0.1:6379", "[fd77::1]:6379"} { // on this host
		family := unix.AF_INET
		if addrPort(to).Addr().Is6() {
			family = unix.AF_INET6
		}
		if _, err := h1.begin(family, addrPort(to)); err != nil {
			require.ErrorIs(t, err, unix.ECONNREFUSED, to)
		}
		require.Zero(t, stat(t, d, "offered"), to)
		require.Zero(t, nativeCount(t, d, SideClient, ReasonAddress), to)
	}
	_, err := h1.begin(unix.AF_INET, addrPort(ghost4+":6379"))
	require.NoError(t, err)
	require.EqualValues(t, 1, stat(t, d, "offered"))
	require.NoError(t, d.StopHeartbeat())
	_, err = h1.begin(unix.AF_INET, addrPort(ghost4+":6379"))
	require.NoError(t, err)
	require.EqualValues(t, 1, nativeCount(t, d, SideClient, ReasonGatewayStale))
}

// A gateway that does not know its off switch yet is not switched off.
func TestOfferWhileWaiting(t *testing.T) {
	t.Parallel()
	h1, h2 := newPair(t)
	h1.ghosts(h2)
	cfg := config([]Rule{{Action: ActionAccelerate}})
	cfg.Waiting = true
	d := h1.open(cfg)
	to := addrPort(ghost4 + ":6379")
	for _, off := range []bool{true, false} {
		_, err := h1.begin(unix.AF_INET, to)
		require.NoError(t, err)
		require.NoError(t, d.SetOff(off))
	}
	require.EqualValues(t, 1, nativeCount(t, d, SideClient, ReasonGatewayStale))
	require.EqualValues(t, 1, nativeCount(t, d, SideClient, ReasonOff))
	_, err := h1.begin(unix.AF_INET, to)
	require.NoError(t, err)
	require.EqualValues(t, 1, stat(t, d, "offered"))
}

// The programs decide as Decide does, for users and cgroups too.
func TestPolicyInKernel(t *testing.T) {
	h1, h2 := newPair(t)
	mount, err := procfs.CgroupMount()
	require.NoError(t, err)
	base := makeCgroups(t, mount)
	defer enterCgroup(t, mount, "/")
	h1.do(func() { defaultRoutes(t, h2.mac()) })
	cfg := config(nil)
	cfg.NeverPorts, cfg.CgroupPath = testNever, mount
	d := h1.open(cfg)
	rec := record(t, d)
	rng := rand.New(rand.NewPCG(1, 2))
	pick := func(n int) int { return rng.IntN(n) }
	decided := map[int]Decided{}
	for range 10 {
		rules := randomRules(pick, base)
		require.NoError(t, d.SetPolicy(rules))
		place := base + []string{"/a", "/a/b", "/c"}[pick(3)]
		enterCgroup(t, mount, place)
		refused := map[Tuple]Verdict{}
		for range 15 {
			q := Query{
				Peer: testPeers[pick(len(testPeers))], Port: testPorts[pick(len(testPorts))],
				UID: testUIDs[pick(len(testUIDs))], Cgroup: place,
			}
			tuple := h1.beginAs(q)
			q.Local, q.Remote = tuple.Local, tuple.Remote
			want := naive(rules, testNever, q)
			n := decided[want.Rule]
			n.Rule = want.Rule
			if want.Action == ActionPass {
				refused[tuple] = want
				n.Pass++
				decided[want.Rule] = n
				continue
			}
			n.Accelerate++
			decided[want.Rule] = n
			f, err := d.Flow(tuple)
			require.NoError(t, err, "%+v %+v", rules, q)
			require.Equal(t, want.Rule, f.Rule, "%+v %+v", rules, q)
		}
		for tuple, want := range refused {
			e := rec.wait(t, 30*time.Second, func(e Event) bool { return e.Tuple == tuple })
			require.Equal(t, want.Reason, e.Reason, "%+v %v", rules, tuple)
			require.Equal(t, want.Rule, e.Rule, "%+v %v", rules, tuple)
		}
	}
	c, err := d.Counters()
	require.NoError(t, err)
	require.ElementsMatch(t, slices.Collect(maps.Values(decided)), c.Decided)
}

// makeCgroups makes base/a/b and base/c below the mount and returns base.
func makeCgroups(t *testing.T, mount string) string {
	t.Helper()
	base, err := os.MkdirTemp(mount, "smcgw-ebpf-test-") //nolint:usetesting // on cgroup2
	require.NoError(t, err)
	dirs := []string{"c", "a/b", "a", ""}
	require.NoError(t, os.MkdirAll(filepath.Join(base, "a/b"), 0o755))
	require.NoError(t, os.MkdirAll(filepath.Join(base, "c"), 0o755))
	t.Cleanup(func() {
		for _, dir := range dirs {
			require.Eventually(t, func() bool { return os.Remove(filepath.Join(base, dir)) == nil }, 30*time.Second, 10*time.Millisecond)
		}
	})
	return "/" + filepath.Base(base)
}

// defaultRoutes sends everything to the other end, which ignores it.
func defaultRoutes(t *testing.T, mac net.HardwareAddr) {
	t.Helper()
	ifi, err := linkIndex("w0")
	require.NoError(t, err)
	for gw, all := range map[string]string{ghost4: "0.0.0.0/0", ghost6: "::/0"} {
		require.NoError(t, netlink.NeighSet(&netlink.Neigh{LinkIndex: ifi, State: unix.NUD_PERMANENT, IP: net.ParseIP(gw), HardwareAddr: mac}))
		_, dst, err := net.ParseCIDR(all)
		require.NoError(t, err)
		require.NoError(t, netlink.RouteAdd(&netlink.Route{LinkIndex: ifi, Dst: dst, Gw: net.ParseIP(gw)}))
	}
}

// randomRules is drawRules without rapid, with cgroups that exist.
func randomRules(pick func(int) int, base string) []Rule {
	rules := make([]Rule, pick(6))
	for i := range rules {
		r := &rules[i]
		r.Action, r.Proto = Action(pick(3)), Proto(pick(3)/2)
		for range pick(3) {
			r.Ports = append(r.Ports, testPorts[pick(len(testPorts))])
		}
		for range pick(3) {
			r.Peers = append(r.Peers, testPrefixes[pick(len(testPrefixes))])
		}
		r.Direction, r.Share = Direction(pick(4)%3), []Share{ShareDefault, ShareDefault, ShareNone, ShareAll, ShareOf(50)}[pick(5)]
		if r.Direction == DirectionServer {
			continue
		}
		if pick(3) == 0 {
			r.UIDs = append(r.UIDs, testUIDs[pick(len(testUIDs))])
		}
		if pick(3) == 0 {
			r.Cgroups = append(r.Cgroups, base+testCgroups[pick(len(testCgroups))])
		}
	}
	return rules
}

// enterCgroup moves the whole process: threads of one process may not be in
// different cgroups of a domain.
func enterCgroup(t *testing.T, mount, dir string) {
	t.Helper()
	require.NoError(t, os.WriteFile(filepath.Join(mount, dir, "cgroup.procs"), []byte("0"), 0o644))
}

// beginAs is begin as a user.
func (h *host) beginAs(q Query) (t Tuple) {
	h.t.Helper()
	family := unix.AF_INET
	if q.Peer.Is6() {
		family = unix.AF_INET6
	}
	to := netip.AddrPortFrom(q.Peer, q.Port)
	fd := -1
	h.do(func() {
		// This thread only; it dies after do.
		_, _, errno := syscall.RawSyscall(syscall.SYS_SETRESUID, uintptr(q.UID), ^uintptr(0), ^uintptr(0))
		if errno != 0 {
			h.t.Errorf("setresuid: %v", errno)
			return
		}
		var err error
		fd, t.Local, err = beginHere(family, to)
		if err != nil {
			h.t.Errorf("connect %v: %v", to, err)
		}
		_, _, _ = syscall.RawSyscall(syscall.SYS_SETRESUID, 0, ^uintptr(0), ^uintptr(0))
	})
	h.t.Cleanup(func() { _ = unix.Close(fd) })
	t.Remote = to
	return t
}

// Patterns stand for the cgroups that exist, also those that came later.
func TestCgroupPatterns(t *testing.T) {
	h1, h2 := newPair(t)
	h1.ghosts(h2)
	mount, err := procfs.CgroupMount()
	require.NoError(t, err)
	base := makeCgroups(t, mount)
	defer enterCgroup(t, mount, "/")
	cfg := config([]Rule{{Cgroups: []string{base + "/l*"}, Action: ActionAccelerate}})
	cfg.CgroupPath = mount
	d := h1.open(cfg)
	q := Query{Peer: netip.MustParseAddr(ghost4), Port: 6379}
	late := filepath.Join(mount, base, "late")
	require.NoError(t, os.Mkdir(late, 0o755))
	defer func() { _ = os.Remove(late) }()
	enterCgroup(t, mount, base+"/late")
	_, err = d.Flow(h1.beginAs(q))
	require.ErrorIs(t, err, ErrNoFlow)
	require.NoError(t, d.refreshCgroups())
	_, err = d.Flow(h1.beginAs(q))
	require.NoError(t, err)
	enterCgroup(t, mount, base+"/c")
	_, err = d.Flow(h1.beginAs(q))
	require.ErrorIs(t, err, ErrNoFlow)
	enterCgroup(t, mount, "/")
	require.NoError(t, os.Remove(late))
	require.NoError(t, d.refreshCgroups())
	require.Empty(t, d.cgroups)
}

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
