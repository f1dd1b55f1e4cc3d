package ebpf

import (
	"errors"
	"maps"
	"net"
	"net/netip"
	"runtime"
	"testing"
	"time"

	bpf "github.com/cilium/ebpf"
	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/lab/testnet"
)

// requireRoot skips loudly, or fails where SMCGW_REQUIRE asks for root and bpf.
func requireRoot(t testing.TB) {
	t.Helper()
	testnet.Require(t, "root", "bpf")
}

// host is an anonymous network namespace; it goes when the last thread and
// descriptor of it are gone.
type host struct {
	t  testing.TB
	ns netns.NsHandle
}

// newHost makes a namespace with loopback up.
func newHost(t testing.TB) *host {
	t.Helper()
	h := &host{t: t}
	onThread(func() {
		var err error
		h.ns, err = netns.New()
		require.NoError(t, err)
		lo, err := netlink.LinkByName("lo")
		require.NoError(t, err)
		require.NoError(t, netlink.LinkSetUp(lo))
	})
	t.Cleanup(func() { _ = h.ns.Close() })
	return h
}

// onThread runs fn on a thread that dies afterwards.
func onThread(fn func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		fn()
	}()
	<-done
}

// do runs fn in the namespace.
func (h *host) do(fn func()) {
	onThread(func() {
		if err := netns.Set(h.ns); err != nil {
			h.t.Errorf("enter namespace: %v", err)
			return
		}
		fn()
	})
}

// open opens a datapath in the namespace and keeps its heart beating.
func (h *host) open(cfg Config) *Datapath {
	h.t.Helper()
	var d *Datapath
	var err error
	if cfg.Legs == nil {
		cfg = withLegs(h.t, cfg)
	}
	h.do(func() { d, err = Open(cfg) })
	require.NoError(h.t, err)
	require.NoError(h.t, d.Heartbeat())
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-stop:
				return
			case <-time.After(40 * time.Millisecond):
				if !pausedHeart(d) {
					_ = d.Heartbeat()
				}
			}
		}
	}()
	h.t.Cleanup(func() {
		close(stop)
		<-done
		require.NoError(h.t, d.Close())
	})
	return d
}

// pausedHeart reports whether a test stopped the heartbeat.
func pausedHeart(d *Datapath) bool {
	var at uint64
	return d.enter() == nil && func() bool {
		defer d.leave()
		return d.objs.Beat.Lookup(uint32(0), &at) == nil && at == 0
	}()
}

// pair joins two hosts: 10.77.0.1 fd77::1 and 10.77.0.2 fd77::2 on device w0.
func pair(t testing.TB, a, b *host) {
	t.Helper()
	a.do(func() {
		v := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "w0"}, PeerName: "peer0"}
		require.NoError(t, netlink.LinkAdd(v))
		p, err := netlink.LinkByName("peer0")
		require.NoError(t, err)
		require.NoError(t, netlink.LinkSetNsFd(p, int(b.ns)))
	})
	b.do(func() {
		p, err := netlink.LinkByName("peer0")
		require.NoError(t, err)
		require.NoError(t, netlink.LinkSetName(p, "w0"))
	})
	for i, h := range []*host{a, b} {
		n := byte(i + 1)
		h.do(func() { address(t, "w0", n) })
	}
	for _, addr := range []string{"10.77.0.2:1", "[fd77::2]:1"} {
		require.Eventually(t, func() bool { return errors.Is(a.dial(addr, 200*time.Millisecond), unix.ECONNREFUSED) },
			30*time.Second, 20*time.Millisecond, addr)
	}
}

// newPair makes two hosts that are joined.
func newPair(t testing.TB) (a, b *host) {
	t.Helper()
	requireRoot(t)
	a, b = newHost(t), newHost(t)
	pair(t, a, b)
	return a, b
}

// address configures a device.
func address(t testing.TB, dev string, n byte) {
	t.Helper()
	l, err := netlink.LinkByName(dev)
	require.NoError(t, err)
	require.NoError(t, netlink.LinkSetUp(l))
	for _, ip := range []*net.IPNet{
		{IP: net.IPv4(10, 77, 0, n), Mask: net.CIDRMask(24, 32)},
		{IP: net.ParseIP("fd77::" + string('0'+n)), Mask: net.CIDRMask(64, 128)},
	} {
		require.NoError(t, netlink.AddrAdd(l, &netlink.Addr{IPNet: ip, Flags: unix.IFA_F_NODAD}))
	}
}

// dial connects from the namespace and closes again.
func (h *host) dial(addr string, timeout time.Duration) error {
	c, err := h.connect(addr, timeout)
	if err == nil {
		err = c.Close()
	}
	return err
}

// connect makes a plain TCP connection from the namespace.
func (h *host) connect(addr string, timeout time.Duration) (c net.Conn, err error) {
	d := net.Dialer{Timeout: timeout}
	d.SetMultipathTCP(false)
	h.do(func() { c, err = d.Dial("tcp", addr) })
	return c, err
}

// retransmitted counts the segments of a connection that were sent again, SYNs
// included: what had to wait for that was not answered at once.
func retransmitted(t *testing.T, c net.Conn) (n uint32) {
	t.Helper()
	rc, err := c.(*net.TCPConn).SyscallConn()
	require.NoError(t, err)
	require.NoError(t, rc.Control(func(fd uintptr) {
		info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
		require.NoError(t, err)
		n = info.Total_retrans
	}))
	return n
}

// echo serves on the namespace's wildcard address until the test ends.
func (h *host) echo(port string) {
	h.t.Helper()
	var ln net.Listener
	var err error
	h.do(func() { ln, err = net.Listen("tcp", ":"+port) })
	require.NoError(h.t, err)
	h.t.Cleanup(func() { _ = ln.Close() })
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go func() {
				defer func() { _ = c.Close() }()
				b := make([]byte, 4096)
				for {
					n, err := c.Read(b)
					if err != nil {
						return
					}
					if _, err := c.Write(b[:n]); err != nil {
						return
					}
				}
			}()
		}
	}()
}

// exchange proves that a connection carries bytes both ways.
func exchange(t *testing.T, c net.Conn) {
	t.Helper()
	require.NoError(t, c.SetDeadline(time.Now().Add(patience)))
	_, err := c.Write([]byte("ping"))
	require.NoError(t, err)
	b := make([]byte, 4)
	_, err = c.Read(b)
	require.NoError(t, err)
	require.Equal(t, "ping", string(b))
}

// tupleOf is the tuple of a connection of a local client.
func tupleOf(c net.Conn) Tuple {
	l, r := c.LocalAddr().(*net.TCPAddr).AddrPort(), c.RemoteAddr().(*net.TCPAddr).AddrPort()
	return Tuple{
		Local:  netip.AddrPortFrom(l.Addr().Unmap(), l.Port()),
		Remote: netip.AddrPortFrom(r.Addr().Unmap(), r.Port()),
	}
}

// patience bounds the wait for what has to happen, on however slow a machine.
const patience = 30 * time.Second

// accelerate is the policy most tests use.
func accelerate(ports ...uint16) []Rule {
	return []Rule{{Ports: ports, Action: ActionAccelerate}}
}

// config enforces a policy on w0. A heart that stops on a busy machine is none
// that a test stopped.
func config(policy []Rule) Config {
	return Config{Devices: []string{"w0"}, Mode: ModeEnforce, Policy: policy, HeartbeatTimeout: patience}
}

// stat reads one counter.
func stat(t *testing.T, d *Datapath, name string) uint64 {
	t.Helper()
	c, err := d.Counters()
	require.NoError(t, err)
	n, ok := c.Stats[name]
	require.True(t, ok, name)
	return n
}

// datagramCount reads a reason's counter of tuples of UDP.
func datagramCount(t *testing.T, d *Datapath, side Side, reason uint8) uint64 {
	t.Helper()
	c, err := d.Counters()
	require.NoError(t, err)
	return c.Datagrams[side][reason]
}

// nativeCount reads a reason's counter of connections.
func nativeCount(t *testing.T, d *Datapath, side Side, reason uint8) uint64 {
	t.Helper()
	c, err := d.Counters()
	require.NoError(t, err)
	return c.Native[side][reason]
}

// programs names the programs of an object that are loaded.
func (o *objects) programs() map[string]*bpf.Program {
	all := map[string]*bpf.Program{
		"sockops": o.Sockops, "connect4": o.Connect4, "connect6": o.Connect6,
		"eg_l2": o.EgressL2, "eg_l3": o.EgressL3, "in_l2": o.IngressL2, "in_l3": o.IngressL3, "eg_ipoib": o.EgressIB, "in_ipoib": o.IngressIB,
		"leg_in": o.LegIn, "leg_eg": o.LegOut, "app_in": o.AppIn, "app_eg": o.AppOut, "wire_in": o.WireIn, "lookup": o.Lookup, "cas": o.CAS,
	}
	maps.DeleteFunc(all, func(_ string, p *bpf.Program) bool { return p == nil })
	return all
}

// linkIndex is the index of a device of the calling thread's namespace.
func linkIndex(name string) (int, error) {
	l, err := netlink.LinkByName(name)
	if err != nil {
		return 0, err
	}
	return l.Attrs().Index, nil
}

// layer3 makes a TUN "l3" with address 10.78.0.1/24: a wire device without a
// link header. The caller closes it.
func (h *host) layer3(t *testing.T) (fd int) {
	t.Helper()
	h.do(func() {
		var err error
		fd, err = openTUN("l3")
		require.NoError(t, err)
		l, err := netlink.LinkByName("l3")
		require.NoError(t, err)
		require.NoError(t, netlink.LinkSetUp(l))
		addr, err := netlink.ParseAddr("10.78.0.1/24")
		require.NoError(t, err)
		require.NoError(t, netlink.AddrAdd(l, addr))
	})
	return fd
}
