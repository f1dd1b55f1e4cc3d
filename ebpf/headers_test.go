package ebpf

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
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
	s := newServer(t, config(accelerate(6379)))
	syn := s.syn(false, 1000)
	s.sendTagged(syn)
	third := s.answered(syn).third(smgw(roleConfirm, 0x1234))
	third.payload = proposal
	s.sendTagged(third)
	s.steered(third)
}
