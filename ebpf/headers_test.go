package ebpf

import (
	"context"
	"encoding/binary"
	"net"
	"net/netip"
	"os/exec"
	"slices"
	"testing"
	"time"

	bpf "github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/ebpf/internal/netdev"
	"github.com/smcgw/smcgw/lab/testnet"
)

// jumbo gives an IPv6 packet the form in which the kernel has it when it is longer than
// 64 KiB (BIG TCP).
func jumbo(pkt []byte) []byte {
	head := slices.Clone(pkt[:40])
	options := binary.BigEndian.AppendUint32([]byte{head[6], 0, 0xc2, 4}, 8+1<<17)
	head[4], head[5], head[6] = 0, 0, 0
	return slices.Concat(head, options, pkt[40:])
}

// Segments of more than 64 KiB of a carried connection go where shorter ones go, both ways.
// One that is taken for none of TCP leaves for the network, among the segments of the wire
// leg, or gets to the application, whose sequence numbers are other ones.
func TestBigSegments(t *testing.T) {
	t.Parallel()
	requireRoot(t)
	c := newCellHost(t)
	c.do(func() {
		for _, addrs := range cellAddrs {
			for class, want := range map[string]string{"OUT_SEGMENT": "legs", "IN_SEGMENT": "netstack"} {
				pkt := cellPacket(t, class, addrs[0], addrs[1])
				require.Equal(t, want, c.carried(class, addrs, pkt), class)
				if addrs[0].Addr().Is6() {
					pkt = jumbo(pkt)
				} else {
					pkt[2], pkt[3] = 0, 0
				}
				require.Equal(t, want, c.carried(class, addrs, pkt), "big %s %v", class, addrs[0])
			}
		}
	})
}

// carried tells where a packet of a carried connection goes.
func (c *cellHost) carried(class string, addrs [2]netip.AddrPort, pkt []byte) string {
	c.t.Helper()
	k, err := Tuple{Local: addrs[0], Remote: addrs[1]}.key()
	require.NoError(c.t, err)
	c.enterCell(k, class, int(StateCarrying))
	return c.run(class, addrs[0], addrs[1], pkt)
}

// sendTagged sends a client's segment with a priority and no number of a VLAN, as switches
// and adapters of converged networks do.
func (s *server) sendTagged(seg segment) {
	s.t.Helper()
	to, from := s.h2.mac(), s.h1.mac()
	frame := slices.Concat(to, from, []byte{0x81, 0, 0x60, 0, 8, 0}, seg.bytes(s.t))
	s.h1.do(func() {
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
		require.NoError(s.t, err)
		defer func() { _ = unix.Close(fd) }()
		index, err := linkIndex("w0")
		require.NoError(s.t, err)
		require.NoError(s.t, unix.Sendto(fd, frame, 0, &unix.SockaddrLinklayer{Ifindex: index, Protocol: htons(unix.ETH_P_8021Q)}))
	})
}

// The kernel takes a packet with a priority tag for one without a tag, and so do the
// programs: a connection of which only some packets were theirs would hang.
func TestPriorityTag(t *testing.T) {
	t.Parallel()
	s := newServer(t, config(accelerate(6379)))
	syn := s.syn(false, 1000)
	s.sendTagged(syn)
	third := s.answered(syn).third(smgw(roleConfirm, 0x1234))
	third.payload = proposal
	s.sendTagged(third)
	s.steered(third)
}

// What the programs leave to the kernel keeps its tag: a VLAN device of number 0 has what
// comes with one, be it of TCP or not, and connections there are its own.
func TestPriorityTagStays(t *testing.T) {
	t.Parallel()
	s := newServer(t, config(accelerate(6379)))
	tagged := s.behind("w0")
	native := s.syn(false, 1000)
	native.options = pad(timestamps()) // other options than usual: it is looked at
	s.sendTagged(native)
	require.Eventually(t, func() bool { return tagged() == 1 }, patience, time.Millisecond)
	s.h2.do(func() {
		index, err := linkIndex("w0")
		require.NoError(t, err)
		var v smcgwDevice
		require.NoError(t, s.d.objs.Devices.Lookup(uint32(index), &v))
		v.Flags |= deviceTagged
		require.NoError(t, s.d.objs.Devices.Put(uint32(index), v))
	})
	s.sendTagged(s.syn(false, 2000))
	require.Eventually(t, func() bool { return tagged() == 2 }, patience, time.Millisecond)
	require.Zero(t, stat(t, s.d, "answered"))
	syn := s.syn(false, 3000)
	s.send(syn)
	s.answered(syn)
}

// after counts packets with a tag that the server's programs pass on.
func (s *server) behind(device string) func() uint64 {
	s.t.Helper()
	m, err := bpf.NewMap(&bpf.MapSpec{Type: bpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 1})
	require.NoError(s.t, err)
	s.t.Cleanup(func() { _ = m.Close() })
	p, err := bpf.NewProgram(&bpf.ProgramSpec{Type: bpf.SchedCLS, AttachType: bpf.AttachTCXIngress, License: "GPL", Instructions: asm.Instructions{
		asm.LoadMem(asm.R6, asm.R1, skbVLAN, asm.Word),
		asm.JEq.Imm(asm.R6, 0, "out"),
		asm.StoreImm(asm.RFP, -4, 0, asm.Word),
		asm.LoadMapPtr(asm.R1, m.FD()),
		asm.Mov.Reg(asm.R2, asm.RFP),
		asm.Add.Imm(asm.R2, -4),
		asm.FnMapLookupElem.Call(),
		asm.JEq.Imm(asm.R0, 0, "out"),
		asm.Mov.Imm(asm.R1, 1),
		asm.StoreXAdd(asm.R0, asm.R1, asm.DWord),
		asm.Mov.Imm(asm.R0, -1).WithSymbol("out"), // TCX_NEXT
		asm.Return(),
	}})
	require.NoError(s.t, err)
	s.t.Cleanup(func() { _ = p.Close() })
	s.h2.do(func() {
		index, err := linkIndex(device)
		require.NoError(s.t, err)
		l, err := link.AttachTCX(link.TCXOptions{Interface: index, Program: p, Attach: bpf.AttachTCXIngress, Anchor: link.Tail()})
		require.NoError(s.t, err)
		s.t.Cleanup(func() { _ = l.Close() })
	})
	return func() (n uint64) {
		require.NoError(s.t, m.Lookup(uint32(0), &n))
		return n
	}
}

// takeAddresses makes addresses the host's own: an offer from there that has no socket is
// translated, not in transit.
func takeAddresses(t *testing.T, o *objects, addrs ...netip.Addr) {
	t.Helper()
	for _, addr := range addrs {
		k, err := peerKey(addr, 0)
		require.NoError(t, err)
		require.NoError(t, o.Own.Put(k, smcgwOwn{}))
	}
}

// The offer is overwritten at any place in the options, with a right checksum. A
// packet of a test run has no socket: it counts as forwarded.
func TestNeutraliseEveryOffset(t *testing.T) {
	t.Parallel()
	requireRoot(t)
	h := newHost(t)
	d := h.open(config(accelerate(6379)))
	takeAddresses(t, d.objs, netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("fd00::1"))
	eth := make([]byte, netdev.EtherLen)
	for lead := range 31 {
		for _, v := range []struct {
			src, dst string
			proto    uint16
		}{
			{"10.0.0.1:1000", "10.0.0.2:6379", unix.ETH_P_IP}, {"[fd00::1]:1000", "[fd00::2]:6379", unix.ETH_P_IPV6},
		} {
			nops := make([]byte, lead)
			for i := range nops {
				nops[i] = 1
			}
			opts := pad(nops, smgw(roleOffer, 0xabcd))
			if len(opts) > 40 {
				continue
			}
			syn := segment{src: addrPort(v.src), dst: addrPort(v.dst), flags: flagSYN, seq: 77, options: opts}
			binary.BigEndian.PutUint16(eth[12:], v.proto)
			in := append(append([]byte(nil), eth...), syn.bytes(t)...)
			run := bpf.RunOptions{Data: in, DataOut: make([]byte, 256)}
			_, err := d.objs.EgressL2.Run(&run)
			require.NoError(t, err)
			require.True(t, checksumOK(run.DataOut[netdev.EtherLen:]), "%d %s", lead, v.src)
			out, ok := readSegment(run.DataOut[netdev.EtherLen:])
			require.True(t, ok)
			for _, b := range out.options {
				require.EqualValues(t, 1, b)
			}
			out.options = syn.options
			out.payload, out.raw = nil, nil
			require.Equal(t, syn, out)
		}
	}
	require.Zero(t, stat(t, d, "neutralise_failed"))
	require.Equal(t, stat(t, d, "neutralised"), nativeCount(t, d, SideClient, ReasonForwarded))
}

// nft runs a ruleset in the namespace; the test is skipped where nft is missing, or
// fails where SMCGW_REQUIRE asks for it.
func (h *host) nft(rules string) {
	h.t.Helper()
	testnet.Require(h.t, "nft")
	h.do(func() {
		out, err := exec.Command("nft", rules).CombinedOutput()
		require.NoError(h.t, err, string(out))
	})
}

// refusedAtEgress connects, and expects a bare SYN and a working connection.
func (c *client) refusedAtEgress(reason uint8, connect func() (net.Conn, error)) {
	c.t.Helper()
	before, failed := nativeCount(c.t, c.d, SideClient, reason), stat(c.t, c.d, "neutralise_failed")
	conn, err := connect()
	require.NoError(c.t, err)
	require.Zero(c.t, retransmitted(c.t, conn), "answered at once")
	exchange(c.t, conn)
	require.NoError(c.t, conn.Close())
	syn, ok := c.wire.next(patience, func(s segment) bool { return s.flags&(flagSYN|flagACK) == flagSYN })
	require.True(c.t, ok)
	_, _, has := syn.offer()
	require.False(c.t, has)
	require.Equal(c.t, before+1, nativeCount(c.t, c.d, SideClient, reason))
	require.Equal(c.t, failed, stat(c.t, c.d, "neutralise_failed"))
	require.Eventually(c.t, func() bool { // the proof of legs, which follows a change of rules, has an entry for a moment
		use, err := c.d.MapUsage()
		return err == nil && use[0].Entries == 0
	}, patience, time.Millisecond)
}

// SYNs that cannot be carried leave bare, each with its reason.
func TestNeutralised(t *testing.T) {
	t.Parallel()
	cfg := config([]Rule{{Action: ActionAccelerate}})
	c := newClient(t, cfg)
	c.h2.echo("6379")
	plain := func(addr string) func() (net.Conn, error) {
		return func() (net.Conn, error) { return c.h1.connect(addr, patience) }
	}

	// Address translation on this host: the socket's tuple is not the packet's.
	c.h1.nft(`table ip t { chain o { type nat hook output priority -100; tcp dport 7000 dnat to 10.77.0.2:6379; }; }
		table ip6 t { chain o { type nat hook output priority -100; tcp dport 7000 dnat to [fd77::2]:6379; }; }`)
	for _, addr := range []string{"10.77.0.2:7000", "[fd77::2]:7000"} {
		c.refusedAtEgress(ReasonNAT, plain(addr))
	}
	c.h1.nft("flush ruleset")

	// MPTCP, where the kernel has it.
	c.refusedMPTCP(plain)

	// Fast Open: a SYN with the option.
	c.h1.do(func() {
		err := netdev.WriteSysctl("ipv4/tcp_fastopen", "1")
		require.NoError(t, err)
	})
	c.refusedAtEgress(ReasonSYNOptions, func() (net.Conn, error) { return c.h1.fastOpen(addrPort("10.77.0.2:6379")) })

	// No timestamps.
	c.h1.do(func() {
		err := netdev.WriteSysctl("ipv4/tcp_timestamps", "0")
		require.NoError(t, err)
	})
	c.refusedAtEgress(ReasonSYNOptions, plain("10.77.0.2:6379"))
	c.refusedAtEgress(ReasonSYNOptions, plain("[fd77::2]:6379"))
	c.h1.do(func() {
		err := netdev.WriteSysctl("ipv4/tcp_timestamps", "1")
		require.NoError(t, err)
	})

	// ECN.
	c.h1.do(func() {
		err := netdev.WriteSysctl("ipv4/tcp_ecn", "1")
		require.NoError(t, err)
	})
	c.refusedAtEgress(ReasonSYNOptions, plain("10.77.0.2:6379"))
}

// refusedMPTCP tries a multipath connection, which falls back to TCP at h2.
func (c *client) refusedMPTCP(plain func(string) func() (net.Conn, error)) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, unix.IPPROTO_MPTCP)
	if err != nil {
		c.t.Logf("no MPTCP here: %v", err)
		return
	}
	_ = unix.Close(fd)
	c.refusedAtEgress(ReasonSYNOptions, func() (net.Conn, error) {
		d := net.Dialer{Timeout: patience}
		d.SetMultipathTCP(true)
		var conn net.Conn
		var err error
		c.h1.do(func() { conn, err = d.DialContext(context.Background(), "tcp", "10.77.0.2:6379") })
		return conn, err
	})
	_ = plain
}

// fastOpen connects by sendto(MSG_FASTOPEN): without a cookie the SYN asks for
// one.
func (h *host) fastOpen(to netip.AddrPort) (conn net.Conn, err error) {
	h.do(func() {
		var fd int
		if fd, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0); err != nil {
			return
		}
		err = unix.Sendto(fd, nil, unix.MSG_FASTOPEN, &unix.SockaddrInet4{Port: int(to.Port()), Addr: to.Addr().As4()})
		if err != nil {
			_ = unix.Close(fd)
			return
		}
		f := fileOf(fd)
		conn, err = net.FileConn(f)
		_ = f.Close()
	})
	return conn, err
}

// An offer that leaves by a device that is not listed is blanked. One that passes through
// belongs to the gateway of another host, and is left as it is.
func TestOtherDeviceAndForwarded(t *testing.T) {
	t.Parallel()
	cfg := config([]Rule{{Action: ActionAccelerate}})
	cfg.Devices = []string{"eth9"}
	c := newClient(t, cfg)
	c.h2.echo("6379")
	c.refusedAtEgress(ReasonAddress, func() (net.Conn, error) { return c.h1.connect("10.77.0.2:6379", patience) })

	// h0 - h1 - h2: h0's gateway offers, h1's leaves that alone.
	h0 := newHost(t)
	c.h1.do(func() {
		require.NoError(t, netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "in"}, PeerName: "w0h0"}))
		p, err := netlink.LinkByName("w0h0")
		require.NoError(t, err)
		require.NoError(t, netlink.LinkSetNsFd(p, int(h0.ns)))
		err = netdev.WriteSysctl("ipv4/ip_forward", "1")
		require.NoError(t, err)
		setAddress(t, "in", "10.79.0.1/24")
	})
	h0.do(func() {
		setAddress(t, "w0h0", "10.79.0.2/24")
		require.NoError(t, netlink.RouteAdd(&netlink.Route{Gw: net.IPv4(10, 79, 0, 1), Dst: &net.IPNet{IP: net.IPv4zero, Mask: net.CIDRMask(0, 32)}}))
	})
	c.h2.do(func() {
		_, dst, err := net.ParseCIDR("10.79.0.0/24")
		require.NoError(t, err)
		require.NoError(t, netlink.RouteAdd(&netlink.Route{Gw: net.IPv4(10, 77, 0, 1), Dst: dst}))
	})
	cfg.Devices = []string{"w0h0"}
	d0 := h0.open(cfg)
	require.Eventually(t, func() bool { return c.d.attached("in") }, 30*time.Second, 10*time.Millisecond)
	conn, err := h0.connect("10.77.0.2:6379", patience)
	require.NoError(t, err)
	exchange(t, conn)
	require.NoError(t, conn.Close())
	require.EqualValues(t, 1, stat(t, d0, "offered"))
	require.Zero(t, nativeCount(t, c.d, SideClient, ReasonForwarded))
	require.EqualValues(t, 1, nativeCount(t, d0, SideClient, ReasonPeerNoOption))

	// Without a gateway of its own it is counted there, by the rule that selects it; what it sends again is not.
	require.NoError(t, d0.Close())
	before := c.d.selected(t, 0)
	for i := range 3 {
		conn, err := h0.connect("10.77.0.2:6379", patience)
		require.NoError(t, err)
		exchange(t, conn)
		require.NoError(t, conn.Close())
		require.EqualValues(t, i+1, nativeCount(t, c.d, SideClient, ReasonForwarded))
	}
	require.Equal(t, before+3, c.d.selected(t, 0))
	c.h2.nft("table ip t { chain in { type filter hook input priority 0; tcp dport 6390 drop; }; }")
	require.Error(t, h0.dial("10.77.0.2:6390", 2500*time.Millisecond)) // two SYNs, and more on a busy machine
	require.EqualValues(t, 4, nativeCount(t, c.d, SideClient, ReasonForwarded))
	own, err := c.h1.connect("10.77.0.2:6379", patience)
	require.NoError(t, err)
	exchange(t, own)
	require.NoError(t, own.Close())
	require.EqualValues(t, 4, nativeCount(t, c.d, SideClient, ReasonForwarded), "this host's own")
}

// selected is how many connections a rule has selected.
func (d *Datapath) selected(t *testing.T, rule int) uint64 {
	t.Helper()
	c, err := d.Counters()
	require.NoError(t, err)
	for _, r := range c.Decided {
		if r.Rule == rule {
			return r.Accelerate
		}
	}
	return 0
}

// setAddress brings a device up with an address.
func setAddress(t *testing.T, dev, cidr string) {
	t.Helper()
	l, err := netlink.LinkByName(dev)
	require.NoError(t, err)
	require.NoError(t, netlink.LinkSetUp(l))
	a, err := netlink.ParseAddr(cidr)
	require.NoError(t, err)
	require.NoError(t, netlink.AddrAdd(l, a))
}

// attached reports whether a device has our programs.
func (d *Datapath) attached(name string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, dev := range d.devices {
		if dev.name == name {
			return len(dev.links) == 2
		}
	}
	return false
}
