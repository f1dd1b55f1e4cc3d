package testnet

import (
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Box says what the middlebox does to the packets that a host sends. The zero value does nothing. "Our option" is the
// TCP option of docs/PROTOCOL.md in any role.
//
// A Box affects only IP packets. Neighbour discovery always passes, so that a lossy or dead path can be distinguished
// from an absent host.
type Box struct {
	// Loss and Dup are the probabilities, per mille, of losing or duplicating a packet. With offloads enabled (see
	// [Config]) one packet may be 64 KiB of TCP.
	Loss, Dup int
	// Port, if not 0, restricts everything to TCP segments from or to that port.
	Port uint16

	EatOffers   bool // drop SYNs with our option
	StripSYN    bool // overwrite our option by NOPs on SYNs
	StripSYNACK bool // ... on SYN-ACKs
	StripRest   bool // ... on all segments without SYN
	DropAccepts bool // drop SYN-ACKs with our option
	DropRest    bool // drop all segments without SYN
	Blackhole   bool // drop everything

	// Mirror copies our option from a flow's SYN to its SYN-ACK if that has none, as boxes do that echo unknown
	// options. It must be set for the hosts at both ends.
	Mirror bool

	// Delay and a random part of Jitter are added to the latency of every packet. Neither changes the order of packets.
	Delay, Jitter time.Duration
	// Reorder is the probability, per mille, that a packet is held back for another ReorderBy (default: 2 ms) while
	// later ones overtake it.
	Reorder   int
	ReorderBy time.Duration

	// UDP is applied in addition to the datagrams of one port.
	UDP Datagrams

	// The fields below act on single packets of the wire's size, in this order. They need [Config].NoOffload;
	// super-packets pass unchanged. What keeps state (Firewall, Proxy, Sequences) sees a connection only if both hosts
	// have it set. Connections that began with Proxy or Sequences keep being translated as long as both hosts have any
	// of the fields below set.
	Firewall  Firewall
	Proxy     Proxy
	Sequences bool // shift the sequence numbers of new connections
	Options   Options
	Split     bool // split segments at other places
	Join      bool // join small consecutive segments that are less than 1 ms apart
	PathMTU   PathMTU
	Corrupt   Corruption
	// Watch does not change packets but shows them to what keeps state.
	Watch bool
}

// Datagrams says what the user-space hop does to UDP datagrams from or to Port. Trains that a host has left to its
// device to segment (UDP_SEGMENT) are segmented first, so that each datagram is treated on its own. With the same Seed
// the same datagrams of a sender are affected, as long as they come in the same order.
type Datagrams struct {
	Port uint16 // 0: nothing happens
	// Loss, Dup and Reorder are probabilities, per mille. A reordered datagram is held back for 2 ms.
	Loss, Dup, Reorder int
	Seed               uint64
	// Larger, if not 0, drops datagrams with a longer payload.
	Larger int
	// Rate, if not 0, is how many datagrams may pass per second, with bursts of a tenth of that. The others are
	// dropped.
	Rate int
}

// Validate returns all problems of the box.
func (b Box) Validate() error {
	var errs []error
	perMille := func(name string, v int) {
		if v < 0 || v > 1000 {
			errs = append(errs, fmt.Errorf("%s: %d not in 0..1000", name, v))
		}
	}
	perMille("loss", b.Loss)
	perMille("dup", b.Dup)
	perMille("reorder", b.Reorder)
	perMille("udp.loss", b.UDP.Loss)
	perMille("udp.dup", b.UDP.Dup)
	perMille("udp.reorder", b.UDP.Reorder)
	perMille("corrupt.chance", b.Corrupt.Chance)
	if b.UDP.Larger < 0 || b.UDP.Rate < 0 || b.PathMTU.Bytes < 0 || b.Firewall.Idle < 0 || b.Firewall.Resets < 0 {
		errs = append(errs, errors.New("udp.larger, udp.rate, path_mtu, firewall: negative"))
	}
	if b.Delay < 0 || b.Jitter < 0 || b.ReorderBy < 0 {
		errs = append(errs, errors.New("delay, jitter, reorder_by: negative"))
	}
	return errors.Join(errs...)
}

// slow reports whether all packets must take the user-space hop.
func (b Box) slow() bool { return b.Delay > 0 || b.Jitter > 0 || b.Reorder > 0 || b.single() }

// single reports whether packets must be handled one by one.
func (b Box) single() bool {
	return b.Watch || b.Firewall.Idle > 0 || b.Proxy.On || b.Sequences || b.Options.any() || b.Split || b.Join ||
		b.PathMTU.Bytes > 0 || b.Corrupt.Chance > 0
}

func (b Box) kernel() boxBox {
	k := boxBox{Loss: uint16(b.Loss), Dup: uint16(b.Dup), Port: b.Port, UdpPort: b.UDP.Port}
	for _, f := range []struct {
		on   bool
		flag boxBoxFlag
	}{
		{b.EatOffers, boxBoxFlagBOX_EAT_OFFERS},
		{b.StripSYN, boxBoxFlagBOX_STRIP_SYN},
		{b.StripSYNACK, boxBoxFlagBOX_STRIP_SYNACK},
		{b.StripRest, boxBoxFlagBOX_STRIP_REST},
		{b.DropAccepts, boxBoxFlagBOX_DROP_ACCEPTS},
		{b.DropRest, boxBoxFlagBOX_DROP_REST},
		{b.Blackhole, boxBoxFlagBOX_BLACKHOLE},
		{b.Mirror, boxBoxFlagBOX_HOP_SYN},
		{b.slow(), boxBoxFlagBOX_HOP},
	} {
		if f.on {
			k.Flags |= uint32(f.flag)
		}
	}
	return k
}

// BoxStats counts what the middlebox has seen and done, for all hosts, since the network was made.
type BoxStats struct {
	Segments uint64 // TCP segments
	SYNs     uint64 // SYNs with and without our option
	Offers   uint64 // SYNs with an offer
	Accepts  uint64 // SYN-ACKs with an accept
	Confirms uint64 // segments without SYN with a confirm

	Lost, Duplicated uint64
	Eaten            uint64 // SYNs, by EatOffers
	Stripped         uint64
	DroppedAccepts   uint64
	Blackholed       uint64 // by Blackhole and DropRest
	Hopped           uint64 // packets that took the user-space hop
	Mirrored         uint64
	Reordered        uint64
	HopDropped       uint64 // the hop's queue was full
	Corrupted        uint64
	TooBig           uint64 // by PathMTU
	Larger, TooFast  uint64 // by UDP.Larger and UDP.Rate
	Shifted          uint64 // segments, by Sequences
	Options          uint64 // segments, by Options
	Proxied          uint64 // segments that Proxy changed or kept
	Expired          uint64 // segments, by Firewall
	Cut, Joined      uint64 // additional pieces by Split, segments saved by Join
	Errors           uint64 // the middlebox itself failed
}

// middlebox has the attached programs.
type middlebox struct {
	obj   boxObjects
	links []link.Link
	ports map[*Host]uint32 // ifindex of the host's port
}

func attachMiddlebox(n *Network) (*middlebox, error) {
	m := &middlebox{ports: map[*Host]uint32{}}
	if err := m.load(n.hop.ifindex); err != nil {
		return nil, err
	}
	err := doIn(n.sw.ns, func() error {
		if err := m.attach(n.sw.nl, n.hop.ifindex, m.obj.TestnetHop); err != nil {
			return err
		}
		for _, h := range n.hosts {
			if err := m.addPort(n.sw, h); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, errors.Join(err, m.close())
	}
	return m, nil
}

func (m *middlebox) load(hopIndex int) error {
	spec, err := loadBox()
	if err != nil {
		return fmt.Errorf("middlebox object: %w", err)
	}
	if err := spec.Variables[boxVarHopIfindex].Set(uint32(hopIndex)); err != nil {
		return fmt.Errorf("middlebox constants: %w", err)
	}
	if err := spec.LoadAndAssign(&m.obj, nil); err != nil {
		return fmt.Errorf("load middlebox: %w", err)
	}
	return nil
}

// attach makes a program see what a device receives. On kernels before Linux 6.6 it uses a filter, which ends with the
// device and gives the programs' return values the same meaning.
func (m *middlebox) attach(nl *netlink.Handle, ifindex int, prog *ebpf.Program) error {
	l, err := link.AttachTCX(link.TCXOptions{Interface: ifindex, Program: prog, Attach: ebpf.AttachTCXIngress})
	if errors.Is(err, link.ErrNotSupported) {
		err = attachFilter(nl, ifindex, prog)
		if err == nil {
			return nil
		}
	}
	if err != nil {
		return fmt.Errorf("attach to device %d: %w", ifindex, err)
	}
	m.links = append(m.links, l)
	return nil
}

func attachFilter(nl *netlink.Handle, ifindex int, prog *ebpf.Program) error {
	queue := netlink.QdiscAttrs{LinkIndex: ifindex, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT}
	if err := nl.QdiscAdd(&netlink.GenericQdisc{QdiscAttrs: queue, QdiscType: "clsact"}); err != nil {
		return fmt.Errorf("clsact: %w", err)
	}
	return nl.FilterAdd(&netlink.BpfFilter{
		FilterAttrs: netlink.FilterAttrs{LinkIndex: ifindex, Parent: netlink.HANDLE_MIN_INGRESS, Handle: 1, Priority: 1, Protocol: unix.ETH_P_ALL},
		Fd:          prog.FD(), Name: "testnet", DirectAction: true,
	})
}

// addPort attaches the program to the port of a host. The caller is in the namespace of the switch.
func (m *middlebox) addPort(sw *node, h *Host) error {
	port, err := sw.nl.LinkByName(portDevice(h.Name))
	if err != nil {
		return fmt.Errorf("port of %s: %w", h.Name, err)
	}
	index := uint32(port.Attrs().Index)
	m.ports[h] = index
	if err := m.obj.Boxes.Put(index, boxBox{}); err != nil {
		return fmt.Errorf("middlebox map: %w", err)
	}
	if err := m.obj.Ports.Put(macKey(hostMAC(h.number)), index); err != nil {
		return fmt.Errorf("port map: %w", err)
	}
	return m.attach(sw.nl, int(index), m.obj.TestnetBox)
}

func macKey(addr net.HardwareAddr) boxMac {
	var k boxMac
	copy(k.B[:], addr)
	return k
}

func (m *middlebox) close() error {
	var errs []error
	for _, l := range m.links {
		errs = append(errs, l.Close())
	}
	m.links = nil
	return errors.Join(append(errs, m.obj.Close())...)
}

// SetBox sets what the middlebox does to packets that this host sends, from the next packet on.
func (h *Host) SetBox(b Box) error {
	if err := b.Validate(); err != nil {
		return fmt.Errorf("box of %s: %w", h.Name, err)
	}
	port, ok := h.net.box.ports[h]
	if !ok {
		return fmt.Errorf("box of %s: not on the switch", h.Name)
	}
	h.net.hop.set(hostMAC(h.number), b)
	if err := h.net.box.obj.Boxes.Put(port, b.kernel()); err != nil {
		return fmt.Errorf("box of %s: %w", h.Name, err)
	}
	return nil
}

// SetBox sets what the middlebox does to packets that any host sends.
func (n *Network) SetBox(b Box) error {
	var errs []error
	for _, h := range n.hosts {
		errs = append(errs, h.SetBox(b))
	}
	return errors.Join(errs...)
}

// BoxStats reads the counters of the middlebox.
func (n *Network) BoxStats() (BoxStats, error) {
	s := n.hop.counters()
	for _, c := range []struct {
		which boxBoxCounter
		into  *uint64
	}{
		{boxBoxCounterBOX_SEEN, &s.Segments},
		{boxBoxCounterBOX_SYNS, &s.SYNs},
		{boxBoxCounterBOX_OFFERS, &s.Offers},
		{boxBoxCounterBOX_ACCEPTS, &s.Accepts},
		{boxBoxCounterBOX_CONFIRMS, &s.Confirms},
		{boxBoxCounterBOX_LOST, &s.Lost},
		{boxBoxCounterBOX_DUPLICATED, &s.Duplicated},
		{boxBoxCounterBOX_EATEN, &s.Eaten},
		{boxBoxCounterBOX_STRIPPED, &s.Stripped},
		{boxBoxCounterBOX_DROPPED_ACCEPTS, &s.DroppedAccepts},
		{boxBoxCounterBOX_BLACKHOLED, &s.Blackholed},
		{boxBoxCounterBOX_HOPPED, &s.Hopped},
		{boxBoxCounterBOX_ERRORS, &s.Errors},
	} {
		var count uint64
		if err := n.box.obj.Counters.Lookup(uint32(c.which), &count); err != nil {
			return BoxStats{}, fmt.Errorf("middlebox counters: %w", err)
		}
		*c.into += count
	}
	return s, nil
}
