package ebpf

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"testing"
	"time"

	bpf "github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// fileOf wraps a descriptor that a test opened.
func fileOf(fd int) *os.File { return os.NewFile(uintptr(fd), "test") }

// attachments describes what a datapath could leave in a namespace. What it could
// leave at the cgroup shows as a link of this process; other gateways may be
// attached there at the same time.
func (h *host) attachments() (out []string) {
	h.t.Helper()
	h.do(func() {
		links, err := netlink.LinkList()
		require.NoError(h.t, err)
		for _, l := range links {
			out = append(out, "link "+l.Attrs().Name)
			for _, at := range []bpf.AttachType{bpf.AttachTCXIngress, bpf.AttachTCXEgress} {
				q, err := link.QueryPrograms(link.QueryOptions{Target: l.Attrs().Index, Attach: at})
				require.NoError(h.t, err)
				for _, p := range q.Programs {
					out = append(out, fmt.Sprintf("tcx %s %v", l.Attrs().Name, p.ID))
				}
			}
		}
		for _, f := range []int{unix.AF_INET, unix.AF_INET6} {
			rules, err := netlink.RuleList(f)
			require.NoError(h.t, err)
			for _, r := range rules {
				out = append(out, fmt.Sprintf("rule %d %v", f, r))
			}
			for _, table := range []int{4790, 4791} {
				routes, err := netlink.RouteListFiltered(f, &netlink.Route{Table: table}, netlink.RT_FILTER_TABLE)
				require.NoError(h.t, err)
				for _, r := range routes {
					out = append(out, fmt.Sprintf("route %d %v", f, r))
				}
			}
		}
		lo, err := readSysctl("ipv4/conf/lo/accept_local")
		require.NoError(h.t, err)
		out = append(out, "accept_local "+lo)
	})
	slices.Sort(out)
	return out
}

// ourLinks are the BPF links of this process.
func ourLinks(t *testing.T) int {
	t.Helper()
	n := 0
	names, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	for _, e := range names {
		if to, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil && to == "anon_inode:bpf_link" {
			n++
		}
	}
	return n
}

// Close leaves nothing behind, no descriptor either; so does a failed Open.
func TestCloseLeavesNothing(t *testing.T) {
	requireRoot(t)
	h1, h2 := newHost(t), newHost(t)
	pair(t, h1, h2)
	var err error
	before, fds := h1.attachments(), openFDs(t)
	for range 2 {
		var d *Datapath
		h1.do(func() { d, err = Open(config(accelerate(6379))) })
		require.NoError(t, err)
		require.NotEqual(t, before, h1.attachments())
		require.Equal(t, 9, ourLinks(t)) // lookup, A 2, W, w0 2, connect 2, sockops
		require.NoError(t, d.Close())
		require.Equal(t, before, h1.attachments())
		require.Zero(t, ourLinks(t))
	}
	cfg := config(nil)
	cfg.CgroupPath = "/nonexistent"
	h1.do(func() { _, err = Open(cfg) })
	require.Error(t, err)
	require.Equal(t, before, h1.attachments())
	require.Equal(t, fds, openFDs(t))
}

// Cleanup needs no daemon, is idempotent, leaves others' rules alone and refuses
// while a gateway lives.
func TestCleanup(t *testing.T) {
	requireRoot(t)
	h := newHost(t)
	cfg := config(nil).withDefaults()
	before := h.attachments()
	h.do(func() { // what a killed gateway leaves
		nl, err := netlink.NewHandle(unix.NETLINK_ROUTE)
		require.NoError(t, err)
		defer nl.Close()
		fd, err := openTUN(cfg.appName())
		require.NoError(t, err)
		app, err := linkIndex(cfg.appName())
		require.NoError(t, err)
		l, err := netlink.LinkByIndex(app)
		require.NoError(t, err)
		require.NoError(t, netlink.LinkSetUp(l))
		r := newRouting(nl, cfg)
		old, err := writeSysctl(loAcceptLocal, "1")
		require.NoError(t, err)
		require.Equal(t, "0", old)
		r.restore = true
		require.NoError(t, r.setup(app, 1))
		require.ErrorIs(t, Cleanup(cfg), ErrInUse)
		require.NoError(t, unix.Close(fd))
		require.NotEqual(t, before, h.attachments())
		require.NoError(t, Cleanup(cfg))
	})
	require.Equal(t, before, h.attachments())
	h.do(func() { require.NoError(t, Cleanup(cfg)) })
	require.Equal(t, before, h.attachments())

	d := h.open(cfg)
	h.do(func() { require.ErrorIs(t, Cleanup(cfg), ErrInUse) })
	var second *Datapath
	var err error
	h.do(func() { second, err = Open(cfg) })
	require.ErrorIs(t, err, ErrInUse)
	require.Nil(t, second)
	require.NoError(t, d.Heartbeat())
	cfg.Generation, cfg.RulePref, cfg.Table = 2, 0, 0 // the next generation beside it
	h.do(func() { second, err = Open(cfg) })
	require.NoError(t, err)
	require.NoError(t, second.Close())
	require.NoError(t, d.Close())
	require.Equal(t, before, h.attachments())
}

// TestOpenBehindAKilledGateway: what that one changed is restored by the next.
func TestOpenBehindAKilledGateway(t *testing.T) {
	requireRoot(t)
	h := newHost(t)
	cfg := config(nil).withDefaults()
	before := h.attachments()
	h.do(func() {
		nl, err := netlink.NewHandle(unix.NETLINK_ROUTE)
		require.NoError(t, err)
		defer nl.Close()
		_, err = writeSysctl(loAcceptLocal, "1")
		require.NoError(t, err)
		fd, err := openTUN(cfg.appName())
		require.NoError(t, err)
		app, err := linkIndex(cfg.appName())
		require.NoError(t, err)
		l, err := netlink.LinkByIndex(app)
		require.NoError(t, err)
		require.NoError(t, netlink.LinkSetUp(l))
		r := newRouting(nl, cfg)
		r.restore = true
		require.NoError(t, r.setup(app, 1))
		require.NoError(t, unix.Close(fd))
	})
	require.NoError(t, h.open(cfg).Close())
	require.Equal(t, before, h.attachments())

	h.do(func() { // on where the operator wants it, it stays
		_, err := writeSysctl(loAcceptLocal, "1")
		require.NoError(t, err)
	})
	require.NoError(t, h.open(cfg).Close())
	require.Contains(t, h.attachments(), "accept_local 1")
}

// Rule preferences and tables of others are never touched.
func TestCollision(t *testing.T) {
	requireRoot(t)
	h := newHost(t)
	cfg := config(nil).withDefaults()
	var err error
	h.do(func() {
		r := netlink.NewRule()
		r.Priority, r.Table, r.Family = cfg.RulePref+1, 77, unix.AF_INET
		require.NoError(t, netlink.RuleAdd(r))
		_, err = Open(cfg)
	})
	require.ErrorIs(t, err, ErrCollision)
	h.do(func() {
		rules, err := netlink.RuleList(unix.AF_INET)
		require.NoError(t, err)
		require.True(t, slices.ContainsFunc(rules, func(r netlink.Rule) bool { return r.Table == 77 }))
	})
	other := newHost(t)
	other.do(func() {
		lo, e := netlink.LinkByName("lo")
		require.NoError(t, e)
		_, dst, e := net.ParseCIDR("10.99.0.0/16")
		require.NoError(t, e)
		require.NoError(t, netlink.RouteAdd(&netlink.Route{LinkIndex: lo.Attrs().Index, Dst: dst, Table: cfg.Table}))
		_, err = Open(cfg)
	})
	require.ErrorIs(t, err, ErrCollision)
}

// Devices that appear, change and go are followed.
func TestMonitor(t *testing.T) {
	requireRoot(t)
	h := newHost(t)
	cfg := config(nil)
	cfg.Devices = nil // those of the default routes
	d := h.open(cfg)
	require.Empty(t, *d.present.Load())
	h.do(func() {
		require.NoError(t, netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "e0", MTU: 4000}, PeerName: "e1"}))
		setAddress(t, "e0", "10.80.0.1/24")
		require.NoError(t, netlink.RouteAdd(&netlink.Route{Gw: net.IPv4(10, 80, 0, 2), Dst: defaultNet(unix.AF_INET)}))
	})
	require.Eventually(t, func() bool { return d.attached("e0") && d.attached("e1") }, 30*time.Second, 5*time.Millisecond)
	require.Eventually(t, func() bool { return d.WireMTU() == 4000 }, 30*time.Second, 5*time.Millisecond)
	addrs, err := d.Addrs()
	require.NoError(t, err)
	require.Equal(t, []netip.Addr{netip.MustParseAddr("10.80.0.1")}, addrs, "of offering devices, no link-local ones")
	h.do(func() { // a port of a bridge is seen through the bridge
		require.NoError(t, netlink.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "br"}}))
		br, err := netlink.LinkByName("br")
		require.NoError(t, err)
		e1, err := netlink.LinkByName("e1")
		require.NoError(t, err)
		require.NoError(t, netlink.LinkSetMaster(e1, br))
	})
	require.Eventually(t, func() bool { return !d.attached("e1") && d.attached("br") }, 30*time.Second, 5*time.Millisecond)
	h.do(func() {
		e0, err := netlink.LinkByName("e0")
		require.NoError(t, err)
		require.NoError(t, netlink.LinkDel(e0))
	})
	require.Eventually(t, func() bool { return !d.attached("e0") }, 30*time.Second, 5*time.Millisecond)
}

// The strict reverse-path filter keeps everything native, with its reason; the
// loose one works.
func TestRPFilter(t *testing.T) {
	c := newClient(t, config(accelerate(6379)))
	require.Zero(t, c.d.NativeReason())
	set := func(v string) {
		c.h1.do(func() {
			_, err := writeSysctl("ipv4/conf/all/rp_filter", v)
			require.NoError(t, err)
			require.NoError(t, c.d.checkRPFilter())
		})
	}
	set("1")
	require.Equal(t, ReasonRPFilter, c.d.NativeReason())
	syn, _ := c.offered(ghost4 + ":6379")
	_, _, has := syn.offer()
	require.False(t, has)
	require.EqualValues(t, 1, nativeCount(t, c.d, SideClient, ReasonRPFilter))
	set("0")
	syn, _ = c.offered(ghost4 + ":6379")
	_, _, has = syn.offer()
	require.True(t, has)
}

// What the guardian holds keeps steering alive, without offers.
func TestHandover(t *testing.T) {
	requireRoot(t)
	h1, h2 := newHost(t), newHost(t)
	pair(t, h1, h2)
	var d *Datapath
	var err error
	h1.do(func() { d, err = Open(config(accelerate(6379))) })
	require.NoError(t, err)
	require.NoError(t, d.Heartbeat())
	h, err := d.Handover()
	require.NoError(t, err)
	require.Len(t, h.Hold, 2+6) // TUNs; lookup, A 2, W, w0 2
	at, err := ReadHeartbeat(h.Heartbeat)
	require.NoError(t, err)
	require.Less(t, time.Duration(monotonic())-at, patience)
	require.NoError(t, StopHeartbeat(h.Heartbeat))
	at, err = ReadHeartbeat(h.Heartbeat)
	require.NoError(t, err)
	require.Zero(t, at)
	require.NoError(t, d.Close())
	require.Equal(t, 6, ourLinks(t))
	h1.do(func() {
		_, err := netlink.LinkByName("smcgw-a1")
		require.NoError(t, err)
	})
	require.NoError(t, h.Close())
	require.Zero(t, ourLinks(t))
}

// A stale gateway socket on a tuple is destroyed, once.
func TestDestroySocket(t *testing.T) {
	requireRoot(t)
	h := newHost(t)
	d := h.open(config(accelerate(6379)))
	h.echo("6379")
	tuple := Tuple{Local: addrPort("127.0.0.1:5555"), Remote: addrPort("127.0.0.1:6379")}
	ok, err := d.DestroySocket(tuple)
	require.NoError(t, err)
	require.False(t, ok)
	c, err := h.connect("127.0.0.1:6379", patience) // its listener lives
	require.NoError(t, err)
	exchange(t, c)
	back := tupleOf(c)
	ok, err = d.DestroySocket(Tuple{Local: back.Remote, Remote: back.Local}) // not a gateway socket
	require.NoError(t, err)
	require.False(t, ok)
	exchange(t, c)
	require.NoError(t, c.Close())
	fd := -1
	h.do(func() { // a socket in SYN-SENT, bound to A
		fd, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
		require.NoError(t, err)
		require.NoError(t, unix.BindToDevice(fd, d.AppName()))
		require.NoError(t, unix.SetsockoptInt(fd, unix.SOL_IP, unix.IP_TRANSPARENT, 1))
		require.NoError(t, unix.Bind(fd, &unix.SockaddrInet4{Port: 6400, Addr: [4]byte{10, 1, 1, 1}}))
		require.ErrorIs(t, unix.Connect(fd, &unix.SockaddrInet4{Port: 5555, Addr: [4]byte{10, 2, 2, 2}}), unix.EINPROGRESS)
	})
	defer func() { _ = unix.Close(fd) }()
	tuple = Tuple{Local: addrPort("10.2.2.2:5555"), Remote: addrPort("10.1.1.1:6400")}
	ok, err = d.DestroySocket(tuple)
	require.NoError(t, err)
	require.True(t, ok)
	ok, err = d.DestroySocket(tuple)
	require.NoError(t, err)
	require.False(t, ok)
}

// Whether an application's connect() has returned is what its socket says.
func TestAppConnected(t *testing.T) {
	requireRoot(t)
	h := newHost(t)
	d := h.open(config(accelerate(6379)))
	h.echo("6379")
	is := func(want bool, of Tuple) {
		t.Helper()
		yes, err := d.AppConnected(of)
		require.NoError(t, err)
		require.Equal(t, want, yes)
	}
	is(false, Tuple{Local: addrPort("127.0.0.1:5555"), Remote: addrPort("127.0.0.1:6379")}) // nobody
	is(false, Tuple{Local: addrPort("127.0.0.1:6379"), Remote: addrPort("127.0.0.1:5555")}) // a listener
	c, err := h.connect("127.0.0.1:6379", patience)
	require.NoError(t, err)
	is(true, tupleOf(c))
	exchange(t, c)
	is(true, tupleOf(c))
	require.NoError(t, c.Close())
	fd := -1
	h.do(func() {
		fd, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
		require.NoError(t, err)
		require.NoError(t, unix.SetsockoptInt(fd, unix.SOL_IP, unix.IP_TRANSPARENT, 1))
		require.NoError(t, unix.Bind(fd, &unix.SockaddrInet4{Port: 6400, Addr: [4]byte{10, 1, 1, 1}}))
		err = unix.Connect(fd, &unix.SockaddrInet4{Port: 5555, Addr: [4]byte{127, 0, 0, 2}})
	})
	defer func() { _ = unix.Close(fd) }()
	is(false, Tuple{Local: addrPort("10.1.1.1:6400"), Remote: addrPort("127.0.0.2:5555")}) // in SYN-SENT, or refused
}

// The application's TIME_WAIT is forgotten, a living socket and a listener are not.
func TestForgetTimeWait(t *testing.T) {
	requireRoot(t)
	h := newHost(t)
	d := h.open(config(accelerate(6379)))
	h.echo("6379")
	c, err := h.connect("127.0.0.1:6379", patience)
	require.NoError(t, err)
	exchange(t, c)
	tuple := tupleOf(c)
	forgotten := func(t *testing.T, tuple Tuple) bool {
		ok, err := d.ForgetTimeWait(tuple)
		require.NoError(t, err)
		return ok
	}
	require.False(t, forgotten(t, tuple))
	require.False(t, forgotten(t, Tuple{Local: tuple.Remote, Remote: addrPort("127.0.0.1:1")}), "a listener")
	exchange(t, c)
	require.NoError(t, c.Close())
	require.Eventually(t, func() bool { return forgotten(t, tuple) }, 30*time.Second, 10*time.Millisecond)
	require.False(t, forgotten(t, tuple))
}

// Two gateways under one kernel see their own namespace only: the option appears
// once, and another program's header-option flag stays set.
func TestSharedSockops(t *testing.T) {
	requireRoot(t)
	other := newHost(t)
	d2 := other.open(config([]Rule{{Action: ActionAccelerate}}))
	c := newClient(t, config(accelerate(6379)))
	syn, _ := c.offered(ghost4 + ":6379")
	require.LessOrEqual(t, len(syn.options), 32) // 20 of the kernel's, 10 and padding
	require.EqualValues(t, 1, stat(t, c.d, "offered"))
	n, err := d2.Counters()
	require.NoError(t, err)
	require.Empty(t, n.Native[SideClient])
}
