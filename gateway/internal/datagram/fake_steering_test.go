package datagram

import (
	"errors"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/ebpf"
	"github.com/smcgw/smcgw/negotiate"
	ippacket "github.com/smcgw/smcgw/packet"
)

// fakeSteering is the steering of datagrams: A is one end of a socket pair, the
// test has the other. Maps say what the gateway has told.
type fakeSteering struct {
	a, test int

	mu      sync.Mutex // guards everything below
	peers   map[netip.AddrPort]ebpf.DatagramPeer
	open    map[ebpf.Tuple]int
	closed  []ebpf.Tuple
	pass    map[uint16]bool // services the policy does not want
	routes  int
	ifindex int   // of the way to every peer
	noRoute error // why there is none
}

func newFakeSteering(t testing.TB) *fakeSteering {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	for _, fd := range fds {
		require.NoError(t, unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF, 4<<20))
	}
	d := &fakeSteering{
		a: fds[0], test: fds[1], peers: map[netip.AddrPort]ebpf.DatagramPeer{}, open: map[ebpf.Tuple]int{},
		pass: map[uint16]bool{}, ifindex: 7,
	}
	t.Cleanup(func() {
		_ = unix.Close(d.a)
		_ = unix.Close(d.test)
	})
	return d
}

func (d *fakeSteering) SetDatagramPeer(p ebpf.DatagramPeer) error {
	if p.Capable == (p.Reason != 0) || p.TTL < 0 {
		return errors.New("capable with a reason, or not without one")
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.peers[netip.AddrPortFrom(p.Addr, p.Port)] = p
	return nil
}

func (d *fakeSteering) ForgetDatagramPeer(a netip.Addr, port uint16) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.peers, netip.AddrPortFrom(a, port))
	return nil
}

func (d *fakeSteering) OpenDatagram(t ebpf.Tuple, ifindex, _ int) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.open[t] = ifindex
	return nil
}

func (d *fakeSteering) CloseDatagram(t ebpf.Tuple, reason uint8, ttl time.Duration) error {
	if ttl > 0 && reason == 0 {
		return errors.New("native without a reason")
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.open, t)
	d.closed = append(d.closed, t)
	return nil
}

func (d *fakeSteering) RouteDevice(_, _ netip.Addr) (int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.routes++
	return d.ifindex, d.noRoute
}

func (d *fakeSteering) DatagramIfindex(t ebpf.Tuple) (int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if at, ok := d.open[t]; ok {
		return at, nil
	}
	return 0, ebpf.ErrNoFlow
}

func (d *fakeSteering) Decide(q ebpf.Query) ebpf.Verdict {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !q.Inbound || q.Proto != ebpf.ProtoUDP || d.pass[q.Port] {
		return ebpf.Verdict{Rule: ebpf.NoRule, Reason: uint8(negotiate.ReasonPolicy)}
	}
	return ebpf.Verdict{Action: ebpf.ActionAccelerate}
}

// peer returns what the programs believe of an address.
func (d *fakeSteering) peer(a netip.Addr, port uint16) ebpf.DatagramPeer {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.peers[netip.AddrPortFrom(a, port)]
}

func (d *fakeSteering) isOpen(t ebpf.Tuple) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	_, ok := d.open[t]
	return ok
}

func (d *fakeSteering) wasClosed(t ebpf.Tuple) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Contains(d.closed, t)
}

// steer writes a datagram of a local program as the programs hand it over.
func (d *fakeSteering) steer(t testing.TB, ends endPair, payload []byte) {
	t.Helper()
	b := make([]byte, headroom+len(payload))
	copy(b[headroom:], payload)
	d.write(t, b[putUDP(b, headroom, len(payload), ends):])
}

func (d *fakeSteering) write(t testing.TB, b []byte) {
	t.Helper()
	for end := time.Now().Add(patience); ; {
		_, err := unix.Write(d.test, b)
		if err == nil {
			return
		}
		require.ErrorIs(t, err, unix.EAGAIN)
		require.True(t, time.Now().Before(end), "A is not read")
		_, _ = unix.Poll([]unix.PollFd{{Fd: int32(d.test), Events: unix.POLLOUT}}, 50)
	}
}

// next returns the next packet the gateway has written, nil if none comes.
func (d *fakeSteering) next(within time.Duration) []byte {
	b := make([]byte, 1<<16+100)
	for end := time.Now().Add(within); ; {
		n, err := unix.Read(d.test, b)
		if err == nil {
			return b[:n]
		}
		left := time.Until(end)
		if left <= 0 {
			return nil
		}
		_, _ = unix.Poll([]unix.PollFd{{Fd: int32(d.test), Events: unix.POLLIN}}, int(left/time.Millisecond)+1)
	}
}

// receive returns the next datagram the gateway has written.
func (d *fakeSteering) receive(t testing.TB) udpPacket {
	t.Helper()
	b := d.next(patience)
	require.NotNil(t, b, "no datagram came")
	p, err := parseUDP(b)
	require.NoError(t, err)
	checkSum(t, b)
	return p
}

// checkSum completes the checksum as the kernel does and verifies it.
func checkSum(t testing.TB, b []byte) {
	t.Helper()
	p, err := parseUDP(b)
	require.NoError(t, err)
	require.EqualValues(t, vnetNeedsCsum, b[0])
	hlen := p.payloadAt() - vnetLen - ippacket.UDPLen
	ip := append([]byte(nil), b[vnetLen:]...)
	ippacket.UDP(ip[hlen:]).SetChecksum(^ippacket.Sum(ip[hlen:], 0)) // what NEEDS_CSUM asks for
	whole, err := ippacket.ParseIP(ip)
	require.NoError(t, err)
	require.True(t, whole.HeaderSumOK(), "IPv4 header")
	require.True(t, whole.TransportSumOK(), "UDP")
}

var _ Steering = (*fakeSteering)(nil)
