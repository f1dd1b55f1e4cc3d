package ebpf

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"testing"
	"time"

	bpf "github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
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
