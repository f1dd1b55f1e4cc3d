package twohosts

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/ebpf"
	"github.com/smcgw/smcgw/packet"
)

// Datagrams is the steering of datagrams of a host. A is one end of a socket pair, of which the test has the other. The
// maps have what the gateway has told the programs.
type Datagrams struct {
	A, Test int

	sync.Mutex // guards everything below
	Peers      map[netip.AddrPort]ebpf.DatagramPeer
	Open       map[ebpf.Tuple]int
	Pass       map[uint16]bool // services that the policy does not select
	Ifindex    int             // of the way to every peer
	NoRoute    error           // why there is none
	closed     []ebpf.Tuple
}

// NewDatagrams returns the steering of a host without tuples and peers.
func NewDatagrams(t testing.TB) *Datagrams {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	d := &Datagrams{
		A: fds[0], Test: fds[1], Peers: map[netip.AddrPort]ebpf.DatagramPeer{}, Open: map[ebpf.Tuple]int{},
		Pass: map[uint16]bool{}, Ifindex: 7,
	}
	t.Cleanup(func() {
		_ = unix.Close(d.A)
		_ = unix.Close(d.Test)
	})
	for _, fd := range fds {
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF, 4<<20); err != nil {
			t.Fatal(err)
		}
	}
	return d
}

// SetDatagramPeer implements datagram.Steering.
func (d *Datagrams) SetDatagramPeer(p ebpf.DatagramPeer) error {
	if p.Capable == (p.Reason != 0) || p.TTL < 0 {
		return errors.New("capable with a reason, or not without one")
	}
	d.Lock()
	defer d.Unlock()
	d.Peers[netip.AddrPortFrom(p.Addr, p.Port)] = p
	return nil
}

// ForgetDatagramPeer implements datagram.Steering.
func (d *Datagrams) ForgetDatagramPeer(a netip.Addr, port uint16) error {
	d.Lock()
	defer d.Unlock()
	delete(d.Peers, netip.AddrPortFrom(a, port))
	return nil
}

// OpenDatagram implements datagram.Steering.
func (d *Datagrams) OpenDatagram(t ebpf.Tuple, ifindex, _ int) error {
	d.Lock()
	defer d.Unlock()
	d.Open[t] = ifindex
	return nil
}

// CloseDatagram implements datagram.Steering.
func (d *Datagrams) CloseDatagram(t ebpf.Tuple, reason uint8, ttl time.Duration) error {
	if ttl > 0 && reason == 0 {
		return errors.New("native without a reason")
	}
	d.Lock()
	defer d.Unlock()
	delete(d.Open, t)
	d.closed = append(d.closed, t)
	return nil
}

// RouteDevice implements datagram.Steering.
func (d *Datagrams) RouteDevice(_, _ netip.Addr) (int, error) {
	d.Lock()
	defer d.Unlock()
	return d.Ifindex, d.NoRoute
}

// DatagramIfindex implements datagram.Steering.
func (d *Datagrams) DatagramIfindex(t ebpf.Tuple) (int, error) {
	d.Lock()
	defer d.Unlock()
	if at, ok := d.Open[t]; ok {
		return at, nil
	}
	return 0, ebpf.ErrNoFlow
}

// Decide implements datagram.Steering.
func (d *Datagrams) Decide(q ebpf.Query) ebpf.Verdict {
	d.Lock()
	defer d.Unlock()
	if !q.Inbound || q.Proto != ebpf.ProtoUDP || d.Pass[q.Port] {
		return ebpf.Verdict{Rule: ebpf.NoRule, Reason: ebpf.ReasonPolicy}
	}
	return ebpf.Verdict{Action: ebpf.ActionAccelerate}
}

// Peer returns what the programs know of a peer, or of its port if that is not 0.
func (d *Datagrams) Peer(a netip.Addr, port uint16) ebpf.DatagramPeer {
	d.Lock()
	defer d.Unlock()
	return d.Peers[netip.AddrPortFrom(a, port)]
}

// IsOpen reports whether a tuple is open.
func (d *Datagrams) IsOpen(t ebpf.Tuple) bool {
	d.Lock()
	defer d.Unlock()
	_, ok := d.Open[t]
	return ok
}

// WasClosed reports whether a tuple was ever closed.
func (d *Datagrams) WasClosed(t ebpf.Tuple) bool {
	d.Lock()
	defer d.Unlock()
	return slices.Contains(d.closed, t)
}

// patience bounds the wait for room in A.
const patience = 30 * time.Second

// Steer writes a datagram of a local program to A, with a checksum that a device is to complete.
func (d *Datagrams) Steer(t testing.TB, of ebpf.Tuple, payload []byte) {
	t.Helper()
	const vnetLen, udpCsumOffset = 10, 6
	h := packet.Header{Src: of.Local.Addr(), Dst: of.Remote.Addr(), Proto: packet.ProtoUDP, TTL: 64}
	b := make([]byte, vnetLen+h.Len()+packet.UDPLen, vnetLen+h.Len()+packet.UDPLen+len(payload))
	b[0] = unix.VIRTIO_NET_HDR_F_NEEDS_CSUM
	binary.NativeEndian.PutUint16(b[6:], uint16(h.Len()))
	binary.NativeEndian.PutUint16(b[8:], udpCsumOffset)
	h.Put(b[vnetLen:], packet.UDPLen+len(payload))
	packet.UDP(b[vnetLen+h.Len():]).Put(of.Local.Port(), of.Remote.Port(), len(payload))
	d.Write(t, append(b, payload...))
}

// Write writes a packet to A.
func (d *Datagrams) Write(t testing.TB, b []byte) {
	t.Helper()
	for end := time.Now().Add(patience); ; {
		_, err := unix.Write(d.Test, b)
		if err == nil {
			return
		}
		if !errors.Is(err, unix.EAGAIN) || time.Now().After(end) {
			t.Fatalf("A is not read: %v", err)
		}
		_, _ = unix.Poll([]unix.PollFd{{Fd: int32(d.Test), Events: unix.POLLOUT}}, 50)
	}
}

// Next returns the next packet that the gateway has written to A, or nil if none comes.
func (d *Datagrams) Next(within time.Duration) []byte {
	b := make([]byte, 1<<16+100)
	for end := time.Now().Add(within); ; {
		n, err := unix.Read(d.Test, b)
		if err == nil {
			return b[:n]
		}
		left := time.Until(end)
		if left <= 0 {
			return nil
		}
		_, _ = unix.Poll([]unix.PollFd{{Fd: int32(d.Test), Events: unix.POLLIN}}, int(left/time.Millisecond)+1)
	}
}
