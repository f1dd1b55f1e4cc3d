package ebpf

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"net"
	"net/netip"
	"os"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"time"

	bpf "github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/ebpf/legs"
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
				defer context.AfterFunc(h.t.Context(), func() { _ = c.Close() })() // its peer may have gone without a word
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

// listen opens the transparent listener of a gateway and gives it to the
// datapath.
func (h *host) listen(d *Datapath, network string) *net.TCPListener {
	h.t.Helper()
	var ln net.Listener
	var err error
	lc := net.ListenConfig{Control: gatewaySocket(network)}
	lc.SetMultipathTCP(false)
	legsOf(h.t, d).do(func() { ln, err = lc.Listen(context.Background(), network, ":15001") })
	require.NoError(h.t, err)
	h.t.Cleanup(func() { _ = ln.Close() })
	rc, err := ln.(*net.TCPListener).SyscallConn()
	require.NoError(h.t, err)
	require.NoError(h.t, rc.Control(func(fd uintptr) {
		if network == "tcp6" {
			require.NoError(h.t, d.SetListener(-1, int(fd)))
			return
		}
		require.NoError(h.t, d.SetListener(int(fd), -1))
	}))
	return ln.(*net.TCPListener)
}

// gatewaySocket makes a socket transparent.
func gatewaySocket(network string) func(string, string, syscall.RawConn) error {
	return func(_, _ string, rc syscall.RawConn) error {
		return rc.Control(func(fd uintptr) {
			_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
			if network == "tcp6" {
				_ = unix.SetsockoptInt(int(fd), unix.SOL_IPV6, unix.IPV6_TRANSPARENT, 1)
				return
			}
			_ = unix.SetsockoptInt(int(fd), unix.SOL_IP, unix.IP_TRANSPARENT, 1)
		})
	}
}

// asyncConn is a connect() in progress.
type asyncConn struct {
	c   net.Conn
	err error
}

// connectAsync starts a connect() in the namespace.
func (h *host) connectAsync(addr string) <-chan asyncConn {
	ch := make(chan asyncConn, 1)
	go func() {
		c, err := h.connect(addr, patience)
		ch <- asyncConn{c, err}
	}()
	return ch
}

// negotiated waits for the accepting SYN-ACK at the client.
func negotiated(t *testing.T, d *Datapath) (Flow, segment) {
	t.Helper()
	sa := readTUN(t, d.WireTUN(), func(s segment) bool { return s.flags&(flagSYN|flagACK) == flagSYN|flagACK })
	f, err := d.Flow(Tuple{Local: sa.dst, Remote: sa.src})
	require.NoError(t, err)
	require.Equal(t, StateNegotiating, f.State)
	require.Equal(t, SideClient, f.Side)
	require.Equal(t, f.ISN+1, sa.ack)
	syn, ok := readSegment(f.SYN)
	require.True(t, ok)
	require.Equal(t, f.ISN, syn.seq)
	_, nonce, ok := syn.offer()
	require.True(t, ok)
	require.Equal(t, f.Nonce, nonce)
	return f, sa
}

// met leads a connection to where both gateways know of it: the client has said
// its PROPOSAL. last is that segment, back the tuple as the server sees it.
func met(t *testing.T, d1, d2 *Datapath) (f Flow, last segment, back Tuple) {
	t.Helper()
	f, sa := negotiated(t, d1)
	last = sa.third(smgw(roleConfirm, f.Nonce))
	last.payload = proposal
	writeTUN(t, d1.WireTUN(), last)
	got := readTUN(t, d2.WireTUN(), func(s segment) bool { return len(s.payload) > 0 })
	require.Equal(t, last.src, got.src)
	require.Equal(t, proposal, got.payload)
	return f, last, Tuple{Local: last.dst, Remote: last.src}
}

// bulk sends 8 MiB, large enough for segmentation offload, and compares.
func bulk(t *testing.T, from, to net.Conn) {
	t.Helper()
	data := make([]byte, 8<<20)
	for i := range data {
		data[i] = byte(i * i >> 8)
	}
	deadline := time.Now().Add(patience)
	require.NoError(t, from.SetDeadline(deadline))
	require.NoError(t, to.SetDeadline(deadline))
	sent := make(chan error, 1)
	go func() {
		_, err := from.Write(data)
		sent <- err
	}()
	got := make([]byte, len(data))
	_, err := io.ReadFull(to, got)
	require.NoError(t, err)
	require.NoError(t, <-sent)
	require.True(t, bytes.Equal(data, got))
}

// addrPort is netip.MustParseAddrPort under a shorter name.
func addrPort(s string) netip.AddrPort { return netip.MustParseAddrPort(s) }

// keeperVerb makes this program a keeper of a namespace for legs.
const keeperVerb = "keep-legs"

func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == keeperVerb {
		if err := legs.Serve(nil); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	// Tests mostly wait for the kernel: for what it takes to end a namespace or a program.
	if err := flag.Set("test.parallel", "8"); err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(m)
}

// newLegs makes a namespace for legs; it is the caller's to close.
func newLegs(t testing.TB) *legs.Namespace {
	t.Helper()
	conn, err := legs.Start([]string{os.Args[0], keeperVerb})
	require.NoError(t, err)
	ns, err := legs.Open(conn)
	require.NoError(t, err)
	return ns
}

// object and kernelTypes are read once for all tests: under the race detector that takes longer
// than the verifier does.
var (
	object      = sync.OnceValues(loadSmcgw)
	kernelTypes = btf.NewCache()
)

// withLegs is cfg with a namespace that lives as long as the test, and with what is read once.
func withLegs(t testing.TB, cfg Config) Config {
	t.Helper()
	cfg.kernelTypes, cfg.parse = kernelTypes, func() (*bpf.CollectionSpec, error) {
		spec, err := object()
		return spec.Copy(), err
	}
	cfg.Legs = newLegs(t)
	t.Cleanup(func() { _ = cfg.Legs.Close() })
	return cfg
}

// legsOf is the namespace of a datapath's legs.
func legsOf(t testing.TB, d *Datapath) *host {
	return &host{t: t, ns: netns.NsHandle(d.cfg.Legs.File().Fd())}
}
