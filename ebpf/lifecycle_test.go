package ebpf

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"syscall"
	"testing"
	"time"

	bpf "github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/ebpf/internal/netdev"
	"github.com/smcgw/smcgw/lab/leak"
)

// fileOf wraps a descriptor that a test opened.
func fileOf(fd int) *os.File { return os.NewFile(uintptr(fd), "test") }

// attachments describes what a datapath could leave in a namespace. What it could
// leave at the cgroup shows as a link of this process; other gateways may be
// attached there at the same time.
func (h *host) attachments() (out []string) {
	h.t.Helper()
	h.do(func() {
		links, err := netdev.Whole(netlink.LinkList)
		require.NoError(h.t, err)
		for _, l := range links {
			here := []string{"link " + l.Attrs().Name}
			for _, at := range []bpf.AttachType{bpf.AttachTCXIngress, bpf.AttachTCXEgress} {
				q, err := link.QueryPrograms(link.QueryOptions{Target: l.Attrs().Index, Attach: at})
				if errors.Is(err, unix.ENODEV) { // gone since the listing
					here = nil
					break
				}
				require.NoError(h.t, err)
				for _, p := range q.Programs {
					here = append(here, fmt.Sprintf("tcx %s %v", l.Attrs().Name, p.ID))
				}
			}
			out = append(out, here...)
		}
		for _, f := range netdev.Families() {
			rules, err := netlink.RuleList(f)
			require.NoError(h.t, err)
			for _, r := range rules {
				out = append(out, fmt.Sprintf("rule %d %v", f, r))
			}
			routes, err := netlink.RouteListFiltered(f, &netlink.Route{}, netlink.RT_FILTER_TABLE) // of all tables
			require.NoError(h.t, err)
			for _, r := range routes {
				if r.Dst == nil || !r.Dst.IP.IsLinkLocalUnicast() { // the kernel's own come late
					out = append(out, fmt.Sprintf("route %d %v", f, r))
				}
			}
		}
		lo, err := netdev.ReadSysctl("ipv4/conf/lo/accept_local")
		require.NoError(h.t, err)
		out = append(out, "accept_local "+lo)
	})
	slices.Sort(out)
	return out
}

// attached waits until nothing else is attached: a process that another test starts has the descriptors of
// TUNs and links, too, until its exec.
func (h *host) attached(t *testing.T, want []string) {
	t.Helper()
	for end := time.Now().Add(patience); !slices.Equal(h.attachments(), want) && time.Now().Before(end); {
		time.Sleep(10 * time.Millisecond)
	}
	require.Equal(t, want, h.attachments())
}

// ourLinks are the BPF links of this process.
func ourLinks(t *testing.T) int {
	t.Helper()
	n := 0
	for _, to := range leak.OpenFiles() {
		if to == "anon_inode:bpf_link" {
			n++
		}
	}
	return n
}

// Close leaves nothing behind, no descriptor either; so does a failed Open.
func TestCloseLeavesNothing(t *testing.T) {
	h1, _ := newPair(t)
	var err error
	cfg := withLegs(t, config(accelerate(6379)))
	before, fds := h1.attachments(), len(leak.OpenFiles())
	for range 2 {
		var d *Datapath
		h1.do(func() { d, err = Open(cfg) })
		require.NoError(t, err)
		require.NotEqual(t, before, h1.attachments())
		require.Equal(t, 9, ourLinks(t)) // lookup, A 2, W, w0 2, connect 2, sockops
		require.NoError(t, d.Close())
		h1.attached(t, before)
		require.Zero(t, ourLinks(t))
	}
	cfg.CgroupPath = "/nonexistent"
	h1.do(func() { _, err = Open(cfg) })
	require.Error(t, err)
	h1.attached(t, before)
	require.Equal(t, fds, len(leak.OpenFiles()))
}

// A second gateway of the same generation is refused, one of the next is not.
func TestOneOfAGeneration(t *testing.T) {
	t.Parallel()
	requireRoot(t)
	h := newHost(t)
	cfg := config(nil)
	before := h.attachments()
	d := h.open(cfg)
	var second *Datapath
	var err error
	other := withLegs(t, cfg)
	h.do(func() { second, err = Open(other) })
	require.ErrorIs(t, err, ErrInUse)
	require.Nil(t, second)
	require.NoError(t, d.Heartbeat())
	other.Generation = 2
	h.do(func() { second, err = Open(other) })
	require.NoError(t, err)
	require.NoError(t, second.Close())
	require.NoError(t, d.Close())
	h.attached(t, before)
}

// What a killed gateway has left, because another process still holds its
// namespace, is no obstacle.
func TestOpenBehindAKilledGateway(t *testing.T) {
	t.Parallel()
	requireRoot(t)
	h := newHost(t)
	before := h.attachments()
	held := newLegs(t)
	defer func() { _ = held.Close() }()
	h.do(func() {
		require.NoError(t, netlink.LinkAdd(&netlink.Veth{
			LinkAttrs: netlink.LinkAttrs{Name: "smcgw-h1"}, PeerName: "smcgw-g1", PeerNamespace: netlink.NsFd(int(held.File().Fd())),
		}))
	})
	require.NoError(t, h.open(config(nil)).Close())
	h.attached(t, before)
}

// Devices that appear, change and go are followed.
func TestMonitor(t *testing.T) {
	t.Parallel()
	requireRoot(t)
	h := newHost(t)
	cfg := config(nil)
	cfg.Devices = nil // those of the default routes
	d := h.open(cfg)
	require.Empty(t, *d.present.Load())
	h.do(func() {
		require.NoError(t, netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "e0", MTU: 4000}, PeerName: "e1"}))
		setAddress(t, "e0", "10.80.0.1/24")
		require.NoError(t, netlink.RouteAdd(&netlink.Route{Gw: net.IPv4(10, 80, 0, 2), Dst: &net.IPNet{IP: net.IPv4zero, Mask: net.CIDRMask(0, 32)}}))
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

// TestLookedAtPort: a device that is named and becomes the port of another is not looked at.
func TestLookedAtPort(t *testing.T) {
	t.Parallel()
	requireRoot(t)
	h := newHost(t)
	h.do(func() {
		require.NoError(t, netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "e0"}, PeerName: "e1"}))
		require.NoError(t, netlink.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "br"}}))
	})
	cfg := config(nil)
	cfg.Devices = []string{"e0"}
	d := h.open(cfg)
	devices, missing := d.Looked()
	require.Equal(t, []string{"e0"}, devices)
	require.Empty(t, missing)
	h.do(func() {
		br, err := netlink.LinkByName("br")
		require.NoError(t, err)
		e0, err := netlink.LinkByName("e0")
		require.NoError(t, err)
		require.NoError(t, netlink.LinkSetMaster(e0, br))
	})
	require.Eventually(t, func() bool { devices, missing = d.Looked(); return len(devices) == 0 }, 30*time.Second, 5*time.Millisecond)
	require.Equal(t, []string{"devices: e0 is a port of br: name that"}, missing)
}

// The reverse-path filter of the host sees nothing odd.
func TestRPFilter(t *testing.T) {
	t.Parallel()
	requireRoot(t)
	for _, filter := range []string{"1", "2"} {
		h1, h2 := newPair(t)
		h2.echo("6379")
		for _, h := range []*host{h1, h2} {
			h.do(func() {
				for _, dev := range []string{"all", "default", "w0", "lo"} {
					require.NoError(t, netdev.WriteSysctl("ipv4/conf/"+dev+"/rp_filter", filter))
				}
			})
		}
		d1, d2 := h1.open(config(accelerate(6379))), h2.open(config(accelerate(6379)))
		carryPair(t, h1, h2, d1, d2, h1.listen(d1, "tcp4"), "tcp4", "10.77.0.2:6379").works()
	}
}

// What the guardian holds keeps steering alive, without offers.
func TestHandover(t *testing.T) {
	h1, _ := newPair(t)
	var d *Datapath
	var err error
	cfg := withLegs(t, config(accelerate(6379)))
	h1.do(func() { d, err = Open(cfg) })
	require.NoError(t, err)
	require.NoError(t, d.Heartbeat())
	h, err := d.Handover()
	require.NoError(t, err)
	require.Len(t, h.Hold, 3+6) // TUNs, namespace; lookup, A 2, W, w0 2
	at, err := ReadHeartbeat(h.Heartbeat)
	require.NoError(t, err)
	require.Less(t, time.Duration(Now())-at, patience)
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
	t.Parallel()
	requireRoot(t)
	h := newHost(t)
	d := h.open(config(accelerate(6379)))
	h.echo("6379")
	c, err := h.connect("127.0.0.1:6379", patience)
	require.NoError(t, err)
	exchange(t, c)
	back := tupleOf(c)
	ok, err := d.DestroySocket(Tuple{Local: back.Remote, Remote: back.Local}) // the host's, not a leg
	require.NoError(t, err)
	require.False(t, ok)
	exchange(t, c)
	require.NoError(t, c.Close())
	fd := -1
	legsOf(t, d).do(func() { // a leg in SYN-SENT
		fd, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
		require.NoError(t, err)
		require.NoError(t, unix.SetsockoptInt(fd, unix.SOL_IP, unix.IP_TRANSPARENT, 1))
		require.NoError(t, unix.Bind(fd, &unix.SockaddrInet4{Port: 6400, Addr: [4]byte{10, 1, 1, 1}}))
		require.ErrorIs(t, unix.Connect(fd, &unix.SockaddrInet4{Port: 5555, Addr: [4]byte{10, 2, 2, 2}}), unix.EINPROGRESS)
	})
	defer func() { _ = unix.Close(fd) }()
	tuple := Tuple{Local: addrPort("10.2.2.2:5555"), Remote: addrPort("10.1.1.1:6400")}
	ok, err = d.DestroySocket(tuple)
	require.NoError(t, err)
	require.True(t, ok)
	ok, err = d.DestroySocket(tuple)
	require.NoError(t, err)
	require.False(t, ok)
}

// A leg waits when the namespace of the legs has a socket or a request for the flow. The
// listener that the programs find for its SYN does not count.
func TestLegWaits(t *testing.T) {
	t.Parallel()
	requireRoot(t)
	h := newHost(t)
	d := h.open(config(accelerate(6379)))
	waits := func(of Tuple) bool {
		yes, err := d.LegWaits(of)
		require.NoError(t, err)
		return yes
	}
	tuple := Tuple{Local: addrPort("10.2.2.2:5555"), Remote: addrPort("10.1.1.1:6400")}
	require.False(t, waits(tuple))
	fd := -1
	legsOf(t, d).do(func() {
		var err error
		fd, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
		require.NoError(t, err)
		require.NoError(t, unix.SetsockoptInt(fd, unix.SOL_IP, unix.IP_TRANSPARENT, 1))
		require.NoError(t, unix.Bind(fd, &unix.SockaddrInet4{Port: 6400, Addr: [4]byte{10, 1, 1, 1}}))
		require.ErrorIs(t, unix.Connect(fd, &unix.SockaddrInet4{Port: 5555, Addr: [4]byte{10, 2, 2, 2}}), unix.EINPROGRESS)
	})
	require.True(t, waits(tuple))
	require.False(t, waits(Tuple{Local: tuple.Remote, Remote: tuple.Local}))
	require.NoError(t, unix.Close(fd))
	require.Eventually(t, func() bool { return !waits(tuple) }, 30*time.Second, time.Millisecond)
}

// A request that waits is forgotten, a living socket and a listener are not.
func TestForgetRequest(t *testing.T) {
	t.Parallel()
	requireRoot(t)
	h := newHost(t)
	d := h.open(config(accelerate(6379)))
	var ln net.Listener
	h.do(func() {
		c := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) (err error) {
			_ = raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_DEFER_ACCEPT, 60) })
			return err
		}}
		var err error
		ln, err = c.Listen(t.Context(), "tcp4", "127.0.0.1:6379")
		require.NoError(t, err)
	})
	defer func() { require.NoError(t, ln.Close()) }()
	c, err := h.connect("127.0.0.1:6379", patience) // to the kernel of the server it is a request until it says something
	require.NoError(t, err)
	defer func() { _ = c.Close() }()
	tuple := tupleOf(c)
	forgotten := func(tuple Tuple) bool {
		ok, err := d.ForgetRequest(tuple)
		require.NoError(t, err)
		return ok
	}
	require.False(t, forgotten(tuple), "the client's")
	require.False(t, forgotten(Tuple{Local: tuple.Remote, Remote: addrPort("127.0.0.1:1")}), "a listener")
	require.True(t, forgotten(Tuple{Local: tuple.Remote, Remote: tuple.Local}))
	require.False(t, forgotten(Tuple{Local: tuple.Remote, Remote: tuple.Local}))
}

// The application's TIME_WAIT is forgotten, a living socket and a listener are not.
func TestForgetTimeWait(t *testing.T) {
	t.Parallel()
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
	t.Parallel()
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

// Every program passes the verifier, well below its limit: the verifier of an
// older kernel may need more steps for the same program.
func TestVerifier(t *testing.T) {
	t.Parallel()
	requireRoot(t)
	h := newHost(t)
	h.do(func() {
		spec, err := loadSmcgw()
		require.NoError(t, err)
		objs := new(objects)
		require.NoError(t, verifierErrorOrNil(spec.LoadAndAssign(objs, nil)))
		defer func() { require.NoError(t, objs.Close()) }()
		for name, p := range objs.programs() {
			info, err := p.Info()
			require.NoError(t, err)
			n, ok := info.VerifiedInstructions()
			require.True(t, ok)
			t.Logf("%-15s %d verified instructions", name, n)
			require.Less(t, n, uint32(100_000), name)
		}
	})
}

func verifierErrorOrNil(err error) error {
	if err == nil {
		return nil
	}
	return verifierError(err)
}

func TestConfigValidate(t *testing.T) {
	require.NoError(t, Config{}.Validate())
	err := Config{Generation: 12, Mode: 7, BlackholeAfter: -1, MaxFlows: 1, MaxDatagrams: 1}.Validate()
	for _, part := range []string{"generation", "mode", "fallback", "max_flows", "max_datagrams"} {
		require.ErrorContains(t, err, part)
	}
}

// A host may have more addresses and devices than the programs have room for, as nodes of a
// cluster with IPVS, and routers with a VLAN for each customer: it starts, and the rest is
// native.
func TestMoreThanThereIsRoomFor(t *testing.T) {
	t.Parallel()
	h1, _ := newPair(t)
	h1.do(func() {
		l, err := netlink.LinkByName("w0")
		require.NoError(t, err)
		for i := range 600 {
			a, err := netlink.ParseAddr(fmt.Sprintf("10.79.%d.%d/32", i/256, i%256))
			require.NoError(t, err)
			require.NoError(t, netlink.AddrAdd(l, a))
		}
		for i := range 20 {
			v := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: fmt.Sprintf("x%d", i)}, PeerName: fmt.Sprintf("y%d", i)}
			require.NoError(t, netlink.LinkAdd(v))
		}
	})
	cfg := config(nil)
	cfg.maxOwn = 16
	d := h1.open(cfg)
	h1.do(func() {
		index, err := linkIndex("w0")
		require.NoError(t, err)
		require.True(t, d.isAttached(index), "the device of the offers comes first")
	})
	usage, err := d.MapUsage()
	require.NoError(t, err)
	for _, u := range usage {
		require.LessOrEqual(t, u.Entries, u.Capacity, u.Name)
	}
}

// The link types of if_arp.h whose devices the programs do not read, and one that they do.
const (
	typeNone   = 65534
	typeRawIP  = 519
	typeIP6GRE = 823
)

// tunOf makes a TUN of a link type, up and with an address of 10.99.0.0/24.
func (h *host) tunOf(name string, kind int) *os.File {
	h.t.Helper()
	var f *os.File
	h.do(func() {
		fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
		require.NoError(h.t, err)
		req, err := unix.NewIfreq(name)
		require.NoError(h.t, err)
		req.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
		require.NoError(h.t, unix.IoctlIfreq(fd, unix.TUNSETIFF, req))
		require.NoError(h.t, unix.IoctlSetInt(fd, unix.TUNSETLINK, kind))
		f = os.NewFile(uintptr(fd), name) // from now on it can be polled
		l, err := netlink.LinkByName(name)
		require.NoError(h.t, err)
		addr, err := netlink.ParseAddr("10.99.0.1/24")
		require.NoError(h.t, err)
		require.NoError(h.t, netlink.AddrAdd(l, addr))
		require.NoError(h.t, netlink.LinkSetUp(l))
	})
	h.t.Cleanup(func() { _ = f.Close() })
	return f
}

// A SYN leaves with an offer where an entry has that, and by a device that no program reads
// it leaves as the kernel made it.
func TestUnseenDevices(t *testing.T) {
	t.Parallel()
	requireRoot(t)
	for name, c := range map[string]struct {
		kind   int
		unseen bool
	}{"tun": {typeNone, false}, "rawip": {typeRawIP, true}, "ip6gre": {typeIP6GRE, true}} {
		t.Run(name, func(t *testing.T) {
			h := newHost(t)
			tun := h.tunOf("odd0", c.kind)
			cfg := config(accelerate(6379))
			cfg.Devices = []string{"odd0"}
			d := h.open(cfg)
			to := addrPort("10.99.0.2:6379")
			local, err := h.begin(unix.AF_INET, to)
			require.NoError(t, err)
			syn, buf := segment{}, make([]byte, 2048)
			require.NoError(t, tun.SetReadDeadline(time.Now().Add(patience)))
			for syn.flags&flagSYN == 0 { // IPv6 speaks, too
				n, err := tun.Read(buf)
				require.NoError(t, err)
				syn, _ = readSegment(buf[:n])
			}
			require.Equal(t, to, syn.dst)
			_, _, offers := syn.offer()
			_, err = d.Flow(Tuple{Local: local, Remote: to})
			require.Equal(t, offers, err == nil, "an offer without an entry")
			want := uint64(0)
			if c.unseen {
				want = 1
				require.False(t, offers)
			}
			require.Equal(t, want, nativeCount(t, d, SideClient, ReasonAddress))
		})
	}
}
