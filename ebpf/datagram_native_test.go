package ebpf

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/internal/procfs"
	"github.com/smcgw/smcgw/internal/sockaddr"
)

// Why datagrams of a selected tuple are native, each reason told once, and that
// they are carried again when it is over.
func TestDatagramsNative(t *testing.T) {
	t.Parallel()
	c := newCarriers(t, udpRules(9000))
	rec := record(t, c.d1)
	c.h2.udpEcho("10.77.0.2:9000")
	app := c.h1.udp("", "10.77.0.2:9000")
	tuple, peer := udpTuple(app), netip.MustParseAddr("10.77.0.2")
	capable(t, c.d1, "10.77.0.2")
	ping(t, app, "carried")
	carried := uint64(1)
	steered := func(n uint64, name string) { // the server answers through its gateway all the time
		t.Helper()
		require.Equal(t, n, stat(t, c.d1, "dgram_steered"), name)
	}
	steered(carried, "at first")
	for _, v := range []struct {
		name   string
		reason uint8
		setup  func() error
		undo   func() error
	}{
		{"off", ReasonOff, func() error { return c.d1.SetOff(true) }, func() error { return c.d1.SetOff(false) }},
		{"observe", ReasonMode, func() error { return c.d1.SetMode(ModeObserve) }, func() error { return c.d1.SetMode(ModeEnforce) }},
		{
			"refused", 33, func() error { return c.d1.SetDatagramPeer(DatagramPeer{Addr: peer, Reason: 33}) },
			func() error { return c.d1.SetDatagramPeer(DatagramPeer{Addr: peer, Capable: true}) },
		},
		{
			"unknown", ReasonPeerUnresolved, func() error { return c.d1.ForgetDatagramPeer(peer, 0) },
			func() error { return c.d1.SetDatagramPeer(DatagramPeer{Addr: peer, Capable: true}) },
		},
		{
			"closed", 34, func() error { return c.d1.CloseDatagram(tuple, 34, time.Minute) },
			func() error { return c.d1.CloseDatagram(tuple, 0, 0) },
		},
		{"policy", ReasonPolicy, func() error { return c.d1.SetPolicy(udpRules(9001)) }, func() error { return c.d1.SetPolicy(udpRules(9000)) }},
		{"stale", ReasonGatewayStale, c.d1.StopHeartbeat, c.d1.Heartbeat},
	} {
		require.NoError(t, v.setup(), v.name)
		for range 3 {
			ping(t, app, v.name)
		}
		require.EqualValues(t, 1, datagramCount(t, c.d1, SideClient, v.reason), v.name)
		steered(carried, v.name)
		e := rec.wait(t, 30*time.Second, func(e Event) bool { return e.Kind == EventNative && e.Reason == v.reason })
		require.Equal(t, tuple, e.Tuple)
		require.Equal(t, ProtoUDP, e.Proto)
		got, ok := entry(t, c.d1, tuple)
		require.True(t, ok, v.name)
		require.Equal(t, v.reason, got.Reason, v.name)
		require.NoError(t, v.undo(), v.name)
		ping(t, app, v.name)
		carried++
		steered(carried, v.name)
	}
	// For a while; one that is over before the datagram has left shows nothing.
	forAWhile := func(set func(ttl time.Duration) error, name string, during, after uint64) {
		t.Helper()
		for ttl := 30 * time.Millisecond; ; ttl *= 2 {
			require.Less(t, ttl, patience, name)
			before, begun := stat(t, c.d1, "dgram_steered"), time.Now()
			require.NoError(t, set(ttl))
			ping(t, app, name)
			inTime := time.Since(begun) < ttl
			if inTime {
				steered(before+during, name)
			}
			time.Sleep(ttl + 10*time.Millisecond)
			before = stat(t, c.d1, "dgram_steered")
			ping(t, app, name+", no longer")
			steered(before+after, name+", no longer")
			if inTime {
				return
			}
		}
	}
	forAWhile(func(ttl time.Duration) error { return c.d1.CloseDatagram(tuple, 34, ttl) }, "closed", 0, 1)
	forAWhile(func(ttl time.Duration) error {
		return c.d1.SetDatagramPeer(DatagramPeer{Addr: peer, Capable: true, TTL: ttl})
	}, "known", 1, 0)
}

// An unknown peer is asked about once a second and address, whatever the tuples,
// and only where its datagrams could be carried.
func TestDatagramsAsk(t *testing.T) {
	t.Parallel()
	c := newCarriers(t, udpRules(9000, 9001))
	rec := record(t, c.d1)
	asked := func(e Event) bool { return e.Kind == EventDatagram }
	require.NoError(t, c.d1.SetMode(ModeObserve))
	send := func(to string) Tuple {
		app := c.h1.udp("", to)
		_, err := app.Write([]byte("x"))
		require.NoError(t, err)
		return udpTuple(app)
	}
	send("10.77.0.2:9000")
	require.NoError(t, c.d1.SetMode(ModeEnforce))
	require.Zero(t, stat(t, c.d1, "dgram_asked"))
	begun := time.Now()
	first := send("10.77.0.2:9000")
	for range 5 {
		send("10.77.0.2:9000")
		send("10.77.0.2:9001")
	}
	send("[fd77::2]:9000")
	send("10.77.0.2:9002") // no rule's
	questions := stat(t, c.d1, "dgram_asked")
	require.GreaterOrEqual(t, questions, uint64(2))
	require.LessOrEqual(t, questions, 2+uint64(time.Since(begun)/time.Second))
	e := rec.wait(t, 30*time.Second, asked)
	require.Equal(t, first, e.Tuple)
	require.Equal(t, ReasonPeerUnresolved, e.Reason)
	require.Zero(t, e.Rule)
	time.Sleep(time.Second)
	send("10.77.0.2:9000")
	require.Equal(t, questions+1, stat(t, c.d1, "dgram_asked"))
}

// Nothing else is touched: broadcast and multicast, own addresses, the gateways'
// own ports, raw sockets, TCP rules, and what comes from the network.
func TestDatagramsUntouched(t *testing.T) {
	t.Parallel()
	c := newCarriers(t, []Rule{{Proto: ProtoUDP, Action: ActionAccelerate}})
	c.h1.ghosts(c.h2)
	for _, a := range []string{"10.77.0.255", "255.255.255.255", "224.0.0.251", "10.77.0.1", "127.0.0.1", "ff02::fb", "10.77.0.2", "fd77::2"} {
		capable(t, c.d1, a)
	}
	wire := c.h1.sniff("w0")
	expect := func(name string, to netip.AddrPort, payload string) {
		t.Helper()
		_, ok := wire.nextDatagram(patience, func(u datagram) bool { return u.dst == to && string(u.payload) == payload })
		require.True(t, ok, name)
	}
	app := c.h1.udp("10.77.0.1:0", "")
	setOption(t, app, unix.SOL_SOCKET, unix.SO_BROADCAST, 1)
	ifi := 0
	c.h1.do(func() { ifi, _ = linkIndex("w0") })
	setOption(t, app, unix.SOL_IP, unix.IP_MULTICAST_IF, 0)
	for _, to := range []string{"10.77.0.255:9000", "224.0.0.251:5353", "10.77.0.2:4790", "10.77.0.2:4791"} {
		_, err := app.WriteToUDPAddrPort([]byte(to), addrPort(to))
		if to == "224.0.0.251:5353" && err != nil {
			continue // no multicast route
		}
		require.NoError(t, err, to)
		expect(to, addrPort(to), to)
	}
	from4790 := c.h1.udp("10.77.0.1:4790", "10.77.0.2:9000")
	_, err := from4790.Write([]byte("from 4790"))
	require.NoError(t, err)
	expect("from 4790", addrPort("10.77.0.2:9000"), "from 4790")
	app6 := c.h1.udp("[fd77::1]:0", "")
	_, err = app6.WriteToUDP([]byte("all nodes"), &net.UDPAddr{IP: net.ParseIP("ff02::1"), Port: 9000, Zone: "w0"})
	require.NoError(t, err)
	expect("ff02::1", addrPort("[ff02::1]:9000"), "all nodes")
	require.NotZero(t, ifi)

	raw := datagram{src: addrPort("10.77.0.1:777"), dst: addrPort("10.77.0.2:9000"), payload: []byte("raw")}
	c.h1.do(func() {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
		require.NoError(t, err)
		defer func() { _ = unix.Close(fd) }()
		require.NoError(t, unix.Sendto(fd, raw.bytes(), 0, &unix.SockaddrInet4{Addr: [4]byte{10, 77, 0, 2}}))
	})
	expect("raw socket", raw.dst, "raw")
	c.h1.send(c.h2, raw.bytes()) // a packet socket
	expect("packet socket", raw.dst, "raw")
	require.Zero(t, c.f.carried.Load())
	require.Zero(t, stat(t, c.d1, "dgram_steered"))

	// Without a rule about UDP no UDP packet is looked at.
	require.NoError(t, c.d1.SetPolicy([]Rule{{Action: ActionAccelerate}, {Proto: ProtoUDP, Action: ActionPass}}))
	_, err = app.WriteToUDPAddrPort([]byte("no rule"), addrPort("10.77.0.2:9003"))
	require.NoError(t, err)
	expect("no rule", addrPort("10.77.0.2:9003"), "no rule")
	_, ok := entry(t, c.d1, Tuple{Local: app.LocalAddr().(*net.UDPAddr).AddrPort(), Remote: addrPort("10.77.0.2:9003")})
	require.False(t, ok)
}

// An open tuple makes the programs look at UDP; when it is gone they no longer
// do.
func TestDatagramsOpen(t *testing.T) {
	t.Parallel()
	c := newCarriers(t, nil)
	looks := func() uint32 {
		var v smcgwControl
		require.NoError(t, c.d2.objs.Control.Lookup(uint32(0), &v))
		return v.Datagrams
	}
	require.Zero(t, looks())
	tuple := Tuple{Local: addrPort("10.77.0.2:9000"), Remote: addrPort("10.77.0.1:5000")}
	require.NoError(t, open(c.d2, tuple))
	require.EqualValues(t, 1, looks())
	require.NoError(t, c.d2.closeDatagrams())
	require.EqualValues(t, 1, looks())

	client := c.h1.udp("10.77.0.1:5000", "")
	server := c.h2.udp("10.77.0.2:9000", "10.77.0.1:5000")
	answer := func(text string) {
		t.Helper()
		_, err := server.Write([]byte(text))
		require.NoError(t, err)
		b := make([]byte, 100)
		require.NoError(t, client.SetReadDeadline(time.Now().Add(patience)))
		n, err := client.Read(b)
		require.NoError(t, err)
		require.Equal(t, text, string(b[:n]))
	}
	answer("carried")
	c.carried(1)
	require.NoError(t, c.d2.SetDatagramPeer(DatagramPeer{Addr: tuple.Remote.Addr(), Reason: 33}))
	answer("native: the peer is refused")
	require.EqualValues(t, 1, datagramCount(t, c.d2, SideServer, 33))
	require.NoError(t, c.d2.ForgetDatagramPeer(tuple.Remote.Addr(), 0))
	answer("carried again")
	c.carried(2)
	require.NoError(t, c.d2.SetPolicy(nil)) // the gateway decides about what it opened
	answer("carried still")
	c.carried(3)
	require.NoError(t, c.d2.CloseDatagram(tuple, 0, 0))
	require.NoError(t, c.d2.closeDatagrams())
	require.Zero(t, looks())
	answer("native")
	c.carried(3)
}

// RouteDevice names the device the host would send through.
func TestRouteDevice(t *testing.T) {
	t.Parallel()
	c := newCarriers(t, nil)
	ifi := 0
	c.h1.do(func() { ifi, _ = linkIndex("w0") })
	for _, v := range families {
		got, err := c.d1.RouteDevice(netip.MustParseAddr(v.client), netip.MustParseAddr(v.server))
		require.NoError(t, err)
		require.Equal(t, ifi, got)
	}
	_, err := c.d1.RouteDevice(netip.MustParseAddr("10.77.0.1"), netip.MustParseAddr("10.77.0.1"))
	require.ErrorIs(t, err, ErrNoDevice)
	_, err = c.d1.RouteDevice(netip.MustParseAddr("10.77.0.1"), netip.MustParseAddr("192.0.2.1"))
	require.ErrorIs(t, err, unix.ENETUNREACH)
	_, err = c.d1.RouteDevice(netip.MustParseAddr("10.77.0.1"), netip.MustParseAddr("fd77::2"))
	require.Error(t, err)
	_, err = c.d1.RouteDevice(netip.Addr{}, netip.Addr{})
	require.Error(t, err)
}

// Address translation on the way out that leaves the source ours is undone for
// what is injected; any other keeps datagrams native.
func TestDatagramsTranslated(t *testing.T) {
	t.Parallel()
	c := newCarriers(t, udpRules(9000))
	capable(t, c.d1, "10.77.0.2")
	c.h2.udpEcho("10.77.0.2:9000")
	c.h1.nft(`table ip n {
		chain o { type nat hook output priority -100; ip daddr 192.0.2.7 udp dport 90 dnat to 10.77.0.2:9000; }
		chain p { type nat hook postrouting priority 100; udp sport 7000 snat to 10.77.0.88; }
	}`)
	c.h1.do(func() {
		ifi, err := linkIndex("w0")
		require.NoError(t, err)
		_, dst, err := net.ParseCIDR("192.0.2.0/24")
		require.NoError(t, err)
		require.NoError(t, netlink.RouteAdd(&netlink.Route{LinkIndex: ifi, Dst: dst, Gw: net.ParseIP("10.77.0.2")}))
	})
	app := c.h1.udp("", "192.0.2.7:90")
	ping(t, app, "to another address")
	c.carried(2)
	foreign := c.h1.udp("10.77.0.1:7000", "10.77.0.2:9000")
	_, err := foreign.Write([]byte("from another address"))
	require.NoError(t, err)
	require.Eventually(t, func() bool { return datagramCount(t, c.d1, SideClient, ReasonNAT) == 1 }, 30*time.Second, time.Millisecond)
	require.EqualValues(t, 2, c.f.carried.Load())
}

// Native tuples, however many, evict no carried one, and every table is bounded.
func TestDatagramsBounded(t *testing.T) {
	t.Parallel()
	h1, h2 := newPair(t)
	cfg := config(udpRules(9000))
	cfg.MaxDatagrams, cfg.MaxPeers = 64, 64
	d1, d2 := h1.open(cfg), h2.open(config(nil))
	f := forward(t, d1, d2)
	capable(t, d1, "10.77.0.2")
	h2.udpEcho("10.77.0.2:9000")
	app := h1.udp("", "10.77.0.2:9000")
	ping(t, app, "before")
	many := h1.udp("10.77.0.1:0", "")
	for port := range uint16(2000) {
		_, err := many.WriteToUDPAddrPort([]byte("x"), netip.AddrPortFrom(netip.MustParseAddr("10.77.0.2"), 10000+port))
		if err != nil {
			require.ErrorIs(t, err, unix.ECONNREFUSED)
		}
	}
	e, ok := entry(t, d1, udpTuple(app))
	require.True(t, ok)
	require.EqualValues(t, 1, e.Packets)
	ping(t, app, "after")
	require.Eventually(t, func() bool { return f.carried.Load() == 4 }, 30*time.Second, time.Millisecond)
	usage, err := d1.MapUsage()
	require.NoError(t, err)
	seen := 0
	for _, u := range usage {
		switch u.Name {
		case "dgrams":
			require.Equal(t, 1, u.Entries)
		case "dgram_natives":
			require.Greater(t, u.Entries, 1)
			require.LessOrEqual(t, u.Entries, 64)
		case "dgram_peers", "dgram_asked":
		case "flows":
			require.Positive(t, u.Capacity, u.Name)
			fallthrough
		default:
			require.True(t, u.Capacity == 0 || u.Entries <= u.Capacity, u.Name)
			continue
		}
		require.Zero(t, u.Capacity, "%s may be full for ever, and lacks nothing", u.Name)
		seen++
	}
	require.Equal(t, 4, seen)
}

// sendAs sends a datagram from a new socket that a user made.
func (h *host) sendAs(q Query) (t Tuple) {
	h.t.Helper()
	t.Remote = netip.AddrPortFrom(q.Peer, q.Port)
	fd := -1
	h.do(func() {
		// This thread only; it dies after do. The effective user makes the socket.
		_, _, errno := syscall.RawSyscall(syscall.SYS_SETRESUID, ^uintptr(0), uintptr(q.UID), ^uintptr(0))
		if errno != 0 {
			h.t.Errorf("setresuid: %v", errno)
			return
		}
		var err error
		fd, err = unix.Socket(sockaddr.Family(q.Peer), unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		_, _, _ = syscall.RawSyscall(syscall.SYS_SETRESUID, ^uintptr(0), 0, ^uintptr(0))
		if err == nil {
			err = unix.Connect(fd, sockaddr.Of(t.Remote))
		}
		if err == nil {
			_, err = unix.Write(fd, []byte("x"))
		}
		if err == nil {
			t.Local, err = sockaddr.Local(fd)
		}
		if err != nil {
			h.t.Errorf("datagram to %v: %v", q.Peer, err)
		}
	})
	h.t.Cleanup(func() { _ = unix.Close(fd) })
	return t
}

// The programs decide about datagrams as Decide does: by port, peer, user and
// cgroup, with the never-list, and by rules about UDP only.
func TestDatagramPolicyInKernel(t *testing.T) {
	h1, h2 := newPair(t)
	mount, err := procfs.CgroupMount()
	require.NoError(t, err)
	base := makeCgroups(t, mount)
	defer enterCgroup(t, mount, "/")
	h1.do(func() { defaultRoutes(t, h2.mac()) })
	cfg := config(nil)
	cfg.NeverPorts, cfg.CgroupPath = testNever, mount
	d := h1.open(cfg)
	rng := rand.New(rand.NewPCG(3, 4))
	pick := func(n int) int { return rng.IntN(n) }
	decided, accelerated := map[int]Decided{}, 0
	for range 24 {
		rules := randomRules(pick, base)
		for i := range rules {
			rules[i].Proto = Proto(min(pick(4), 1))
		}
		require.NoError(t, d.SetPolicy(rules))
		looked := slices.ContainsFunc(rules, func(r Rule) bool { return r.Proto == ProtoUDP && r.Action == ActionAccelerate })
		place := base + []string{"/a", "/a/b", "/c"}[pick(3)]
		enterCgroup(t, mount, place)
		for range 15 {
			q := Query{
				Proto: ProtoUDP, Peer: testPeers[pick(len(testPeers))], Port: testPorts[pick(len(testPorts))],
				UID: testUIDs[pick(len(testUIDs))], Cgroup: place,
			}
			tuple := h1.sendAs(q)
			q.Local, q.Remote = tuple.Local, tuple.Remote
			want := naive(rules, testNever, q)
			require.Equal(t, want, d.Decide(q))
			e, ok := entry(t, d, tuple)
			require.Equal(t, looked, ok, "%+v", rules)
			if !looked {
				continue
			}
			n := decided[want.Rule]
			n.Rule = want.Rule
			require.Equal(t, want.Rule, ruleIndex(e.Rule), "%+v %+v", rules, q)
			if want.Action == ActionPass {
				require.Equal(t, want.Reason, e.Reason, "%+v %+v", rules, q)
				n.Pass++
			} else {
				require.Equal(t, ReasonPeerUnresolved, e.Reason, "%+v %+v", rules, q)
				n.Accelerate++
				accelerated++
			}
			decided[want.Rule] = n
		}
	}
	require.Greater(t, accelerated, 10)
	c, err := d.Counters()
	require.NoError(t, err)
	require.ElementsMatch(t, slices.Collect(maps.Values(decided)), c.Decided)
}

// A rule about TCP leaves datagrams alone and the other way round.
func TestRulesByProtocol(t *testing.T) {
	t.Parallel()
	h1, h2 := newPair(t)
	h1.ghosts(h2)
	d := h1.open(config([]Rule{{Ports: []uint16{80}, Action: ActionAccelerate}, {Proto: ProtoUDP, Ports: []uint16{90}, Action: ActionAccelerate}}))
	for _, v := range []struct {
		port   uint16
		tcp    bool
		reason uint8
	}{{80, true, ReasonPolicy}, {90, false, ReasonPeerUnresolved}} {
		to := netip.AddrPortFrom(netip.MustParseAddr(ghost4), v.port)
		local, err := h1.begin(unix.AF_INET, to)
		require.NoError(t, err)
		_, err = d.Flow(Tuple{Local: local, Remote: to})
		require.Equal(t, v.tcp, err == nil, fmt.Sprint(v))
		e, ok := entry(t, d, h1.sendAs(Query{Peer: to.Addr(), Port: v.port}))
		require.True(t, ok)
		require.Equal(t, v.reason, e.Reason, fmt.Sprint(v))
	}
}

// A tuple belongs to the socket that sends on it now: the next owner of a port
// is not taken for the last one, and a decision that is only renewed is not
// counted.
func TestDatagramDecisionAges(t *testing.T) {
	t.Parallel()
	c := newCarriers(t, []Rule{{Proto: ProtoUDP, UIDs: []uint32{1000}, Action: ActionAccelerate}})
	capable(t, c.d1, "10.77.0.2")
	c.h2.udpEcho("10.77.0.2:9000")
	app := c.h1.udp("", "10.77.0.2:9000")
	tuple := udpTuple(app)
	ping(t, app, "root's")
	time.Sleep(1100 * time.Millisecond)
	ping(t, app, "root's, decided again")
	require.Zero(t, c.f.carried.Load())
	counters, err := c.d1.Counters()
	require.NoError(t, err)
	require.Equal(t, []Decided{{Rule: NoRule, Pass: 1}}, counters.Decided)
	require.Equal(t, map[uint8]uint64{ReasonPolicy: 1}, counters.Datagrams[SideClient])
	require.Empty(t, counters.Native[SideClient])
	setOwner(t, app, 1000) // as if another program had taken the port
	time.Sleep(1100 * time.Millisecond)
	ping(t, app, "another user's")
	c.carried(2)
	e, ok := entry(t, c.d1, tuple)
	require.True(t, ok)
	require.Zero(t, e.Rule)
	require.Zero(t, e.Reason)
	require.EqualValues(t, 3, e.Packets)
}

// setOwner gives a socket to another user.
func setOwner(t *testing.T, c syscall.Conn, uid int) {
	t.Helper()
	rc, err := c.SyscallConn()
	require.NoError(t, err)
	require.NoError(t, rc.Control(func(fd uintptr) { require.NoError(t, unix.Fchown(int(fd), uid, -1)) }))
}
