package netstack

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv6"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"

	"github.com/smcgw/smcgw/netstack/internal/segment"
	"github.com/smcgw/smcgw/netstack/link"
	"github.com/smcgw/smcgw/packet"
)

const (
	nicID = 1

	// timeWait is short because wire legs of clients are reset rather than closed, and a tuple may be reused
	// immediately.
	timeWait = time.Second

	minBuffer = 4 << 10
	// legBuffer is the receive buffer of a leg that grows: the window is the one that the mini socket has announced.
	legBuffer     = 128 << 10
	defaultBuffer = 1 << 20
)

// Stack is the wire TCP of one gateway. It is safe for concurrent use.
type Stack struct {
	cfg   Config
	clock tcpip.Clock
	stack *stack.Stack
	link  link.Endpoint
	shim  *shim
	flows flowTable
	acks  ackHolder
	count counters

	reorder segment.Budget

	mu      sync.Mutex // guards closing
	closing bool
	busy    sync.WaitGroup // counts what must not outlive the stack
	closed  chan struct{}
}

// New starts a stack on cfg.Link.
func New(cfg Config) (*Stack, error) {
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("netstack config: %w", err)
	}
	cfg = cfg.withDefaults()
	s := &Stack{cfg: cfg, clock: cfg.clock, link: cfg.Link.Endpoint(), closed: make(chan struct{})}
	s.flows = flowTable{m: map[tupleKey]*flow{}, deadMax: cfg.Limits.Dead, linger: cfg.Linger, clock: cfg.clock}
	s.acks.s = s
	s.shim = newShim(s, s.link)
	gs, err := newGVisor(cfg, s.shim)
	if err != nil {
		discard(s.link)
		return nil, fmt.Errorf("netstack: %w", err)
	}
	s.stack = gs
	gs.SetTransportProtocolHandler(tcp.ProtocolNumber, withoutEndpoint)
	gs.SetPromiscuousMode(nicID, true)
	gs.SetSpoofing(nicID, true)
	s.shim.open.Store(true)
	return s, nil
}

// discard stops a link that was never used.
func discard(l link.Endpoint) {
	l.Detach()
	l.Stop()
}

// newGVisor returns a gVisor stack with one interface, which has every address.
func newGVisor(cfg Config, ep stack.LinkEndpoint) (*stack.Stack, error) {
	gs := stack.New(stack.Options{
		NetworkProtocols:   []stack.NetworkProtocolFactory{ipv4.NewProtocol, ipv6.NewProtocol},
		TransportProtocols: []stack.TransportProtocolFactory{tcp.NewProtocolCUBIC},
		Clock:              cfg.clock,
	})
	err := setTCPOptions(gs, cfg)
	if terr := gs.CreateNIC(nicID, ep); err == nil && terr != nil {
		err = errors.New(terr.String())
	}
	if err != nil {
		gs.Destroy()
		return nil, err
	}
	gs.SetRouteTable([]tcpip.Route{
		{Destination: header.IPv4EmptySubnet, NIC: nicID},
		{Destination: header.IPv6EmptySubnet, NIC: nicID},
	})
	return gs, nil
}

const (
	// maxRTO bounds the pause between two retransmissions, and thus how long a connection may stay silent after the end
	// of a partition. RFC 6298 demands at least 60 s, for networks that are congested that long; but a gateway has only
	// one segment in flight to each such peer.
	maxRTO = 5 * time.Second
	// maxRetries ends a connection whose bytes are not acknowledged after 16 minutes, as Linux's tcp_retries2 does.
	maxRetries = 200
)

// setTCPOptions sets what measurements have shown to matter (docs/ARCHITECTURE.md "netstack"). RACK is off: after a
// retransmission timeout with many segments lost, gVisor's RACK enters fast recovery with nothing that it may send, and
// only two segments move per timeout.
func setTCPOptions(gs *stack.Stack, cfg Config) error {
	sack := tcpip.TCPSACKEnabled(true)
	rto := tcpip.TCPMinRTOOption(cfg.MinRTO)
	rack := tcpip.TCPRecovery(0)
	rtoMax, retries := tcpip.TCPMaxRTOOption(maxRTO), tcpip.TCPMaxRetriesOption(maxRetries)
	tw := tcpip.TCPTimeWaitTimeoutOption(timeWait)
	moderate := tcpip.TCPModerateReceiveBufferOption(true)
	rcv := tcpip.TCPReceiveBufferSizeRangeOption{Min: minBuffer, Default: min(defaultBuffer, cfg.ReceiveBuffer), Max: cfg.ReceiveBuffer}
	snd := tcpip.TCPSendBufferSizeRangeOption{Min: minBuffer, Default: min(defaultBuffer, cfg.SendBuffer), Max: cfg.SendBuffer}
	for _, o := range []tcpip.SettableTransportProtocolOption{&sack, &rack, &rto, &rtoMax, &retries, &tw, &moderate, &rcv, &snd} {
		if terr := gs.SetTransportProtocolOption(tcp.ProtocolNumber, o); terr != nil {
			return fmt.Errorf("tcp option %T: %s", o, terr)
		}
	}
	return nil
}

// MTU returns the size of the largest IP packet of the link.
func (s *Stack) MTU() int { return int(s.link.MTU()) }

// segMax returns the largest TCP header plus payload towards a peer that announced mss, in the IP version of the packet
// raw.
func (s *Stack) segMax(raw []byte, mss uint16) uint32 {
	hlen := packet.IPv4MinLen
	if raw[0]>>4 == 6 {
		hlen = packet.IPv6Len
	}
	mss = max(mss, header.TCPMinimumSendMSS) // a smaller one is malicious: gVisor does the same
	return uint32(max(min(int(mss)+packet.TCPMinLen, s.MTU()-hlen), packet.TCPMinLen))
}

// Forget ends whatever lives on the tuple without sending a packet, and reports whether there was something.
func (s *Stack) Forget(t Tuple) bool { return s.flows.get(keyOf(t)).forget() }

// forget ends a flow without sending a packet, and reports whether it was alive. f may be nil.
func (f *flow) forget() bool {
	if f == nil {
		return false
	}
	c := f.conn.Load()
	if c != nil {
		c.Forget()
	}
	return c != nil
}

// hold keeps Close from finishing until release. It returns false if the stack is closing.
func (s *Stack) hold() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing {
		return false
	}
	s.busy.Add(1)
	return true
}

func (s *Stack) release() { s.busy.Done() }

// retire moves f, which has just ended, from the live to the lingering flows. f keeps no packet. A SYN that met f when
// it was about to end is handled again. It is called once per flow.
func (s *Stack) retire(f *flow) {
	f.conn.Store(nil)
	if g := f.grown.Load(); g != nil { // later segments of gVisor do not get through the shim
		g.acks.drop()
		g.ahead.End(&s.reorder)
	}
	s.flows.bury(f)
	if c := f.challenged.Swap(nil); c != nil && s.clock.NowMonotonic().Sub(c.at) < challengedFor {
		go s.shim.again(f, c.raw) // bounded: once per flow
	}
}

// inject delivers a copy of raw to gVisor, bypassing the shim.
func (s *Stack) inject(raw []byte) {
	p := link.Buffer(raw)
	defer p.DecRef()
	s.shim.Endpoint.DeliverNetworkPacket(link.Protocol(raw), p)
}

// Close ends everything. Carrying connections are reset, all others are forgotten without a packet, because a server
// never resets before it has read the PROPOSAL. Close returns when all goroutines have ended. It must not be called
// from a Handler.
func (s *Stack) Close() error {
	s.mu.Lock()
	if s.closing {
		s.mu.Unlock()
		<-s.closed
		return nil
	}
	s.closing = true
	s.mu.Unlock()
	s.shim.open.Store(false)
	for _, f := range s.flows.close() {
		s.end(f)
	}
	s.busy.Wait()
	s.link.Detach()
	s.stack.Destroy()
	s.link.Stop()
	close(s.closed)
	return nil
}

// end is Close for one flow.
func (s *Stack) end(f *flow) {
	c := f.conn.Load()
	switch {
	case c != nil && f.carrying.Load():
		c.Abort()
	case c != nil:
		c.Forget()
	}
}

// Stats is a snapshot of the counters and table sizes of a Stack.
type Stats struct {
	// Flows counts live flows, Dead lingering ones.
	Flows, Dead int
	// Adopted and Accepted count connections since the start.
	Adopted, Accepted uint64
	// Shed counts proved connections that Limits refused.
	Shed uint64
	// ChecksumErrors counts inbound packets with a wrong checksum, and Malformed those that are not a readable TCP
	// segment or ICMP error. Both are dropped.
	ChecksumErrors, Malformed uint64
	// Unknown counts inbound segments of tuples that the stack does not know, which are dropped.
	Unknown uint64
	// Impossible counts segments that were dropped because they acknowledge something the peer cannot have received.
	Impossible uint64
	// LateSegments counts inbound segments of ended flows that were dropped, LateResets the resets that answered
	// challenge ACKs of such flows.
	LateSegments, LateResets uint64
	// Strangers counts connections that ended because another host answered in the peer's place.
	Strangers uint64
	// DeadEvicted counts ended flows that were evicted from the lingering table.
	DeadEvicted uint64
	// ACKsLate counts acknowledgements that waited for another segment to travel with, and had to be sent alone.
	ACKsLate uint64
	// Grown counts connections that needed more than a mini socket, Repeats the retransmissions of mini sockets.
	Grown, Repeats uint64
	// ICMPDelivered and ICMPIgnored count ICMP errors.
	ICMPDelivered, ICMPIgnored uint64
	// BlackHoles counts how often a connection switched to smaller packets because larger ones were lost.
	BlackHoles uint64
	// ReorderDropped counts inbound segments ahead of a gap that were dropped because their memory bound was reached.
	ReorderDropped uint64
	// OldStamps counts inbound segments whose timestamp is older than that of an earlier one.
	OldStamps uint64
	// LinkDrops counts outbound packets that the link did not accept, LinkRefused those that the kernel calls
	// malformed.
	LinkDrops, LinkRefused uint64
	// Retransmits, Timeouts and SegmentsSent are gVisor's counters; all but Timeouts include mini sockets.
	Retransmits, Timeouts, SegmentsSent uint64
}

// counters are the atomic counters of Stats.
type counters struct {
	adopted, accepted         atomic.Uint64
	shed                      atomic.Uint64
	checksumErrors, malformed atomic.Uint64
	unknown                   atomic.Uint64
	impossible, acksLate      atomic.Uint64
	lateSegments, lateResets  atomic.Uint64
	strangers                 atomic.Uint64
	grown, repeats, miniSent  atomic.Uint64
	icmpDelivered             atomic.Uint64
	icmpIgnored               atomic.Uint64
	blackHoles                atomic.Uint64
	reorderDropped, oldStamps atomic.Uint64
}

// Stats returns a snapshot.
func (s *Stack) Stats() Stats {
	c := &s.count
	st := Stats{
		Adopted: c.adopted.Load(), Accepted: c.accepted.Load(),
		Shed:           c.shed.Load(),
		ChecksumErrors: c.checksumErrors.Load(), Malformed: c.malformed.Load(),
		Unknown:      c.unknown.Load(),
		Impossible:   c.impossible.Load(),
		LateSegments: c.lateSegments.Load(), LateResets: c.lateResets.Load(), Strangers: c.strangers.Load(),
		ACKsLate:      c.acksLate.Load(),
		ICMPDelivered: c.icmpDelivered.Load(), ICMPIgnored: c.icmpIgnored.Load(),
		Grown: c.grown.Load(), Repeats: c.repeats.Load(),
		BlackHoles: c.blackHoles.Load(), ReorderDropped: c.reorderDropped.Load(), OldStamps: c.oldStamps.Load(),
		LinkDrops: s.link.Drops(), LinkRefused: s.link.Refused(),
	}
	st.Flows, st.Dead, st.DeadEvicted = s.flows.sizes()
	t := s.stack.Stats().TCP
	st.Retransmits, st.Timeouts = t.Retransmits.Value()+st.Repeats, t.Timeouts.Value()
	st.SegmentsSent = t.SegmentsSent.Value() + c.miniSent.Load()
	return st
}
