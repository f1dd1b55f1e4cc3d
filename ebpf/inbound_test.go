package ebpf

import (
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/packet"
)

// server is a host with a datapath; the test plays its clients by raw packets.
type server struct {
	t      *testing.T
	h1, h2 *host
	d      *Datapath
	rec    *recorder
	wire   *sniffer
	port   uint16 // last client port
}

// newServer makes a server that echoes on 6379.
func newServer(t *testing.T, cfg Config) *server {
	t.Helper()
	s := &server{t: t, port: 20000}
	s.h1, s.h2 = newPair(t)
	s.h2.ghosts(s.h1)
	s.h2.echo("6379")
	s.d = s.h2.open(cfg)
	s.rec = record(t, s.d)
	s.wire = s.h1.sniff("w0")
	return s
}

// syn builds a client's SYN from a new port, with an offer.
func (s *server) syn(v6 bool, isn uint32) segment {
	s.port++
	src, dst := ghost4, "10.77.0.2:6379"
	if v6 {
		src, dst = ghost6, "[fd77::2]:6379"
	}
	return segment{
		src: netip.AddrPortFrom(netip.MustParseAddr(src), s.port), dst: addrPort(dst),
		flags: flagSYN, seq: isn, options: pad(timestamps(), smgw(roleOffer, 0x1234)),
	}
}

// send sends a client's segment.
func (s *server) send(seg segment) { s.h1.send(s.h2, seg.bytes(s.t)) }

// steered waits for the segment in W.
func (s *server) steered(want segment) {
	s.t.Helper()
	readTUN(s.t, s.d.WireTUN(), func(g segment) bool {
		return g.src == want.src && g.seq == want.seq && g.flags == want.flags
	})
}

// kernelAnswers reports whether the server's kernel sends a SYN-ACK.
func (s *server) kernelAnswers(syn segment, timeout time.Duration) bool {
	_, ok := s.wire.next(timeout, func(g segment) bool {
		return g.dst == syn.src && g.flags&(flagSYN|flagACK) == flagSYN|flagACK && g.ack == syn.seq+1
	})
	return ok
}

// state is the state of the entry of a client's connection.
func (s *server) state(seg segment) State {
	f, err := s.d.Flow(Tuple{Local: seg.dst, Remote: seg.src})
	if err != nil {
		require.ErrorIs(s.t, err, ErrNoFlow)
		return StateNone
	}
	return f.State
}

func (s *server) tuple(seg segment) Tuple { return Tuple{Local: seg.dst, Remote: seg.src} }

// without drops the offer from a SYN.
func (seg segment) without() segment {
	seg.options = pad(timestamps())
	return seg
}

// The table of SYNs from the network (docs/ARCHITECTURE.md "SYNs on a known tuple").
func TestInboundSYN(t *testing.T) {
	t.Parallel()
	s := newServer(t, config(accelerate(6379)))
	for _, v6 := range []bool{false, true} {
		// Offered: answered by the programs (TestAnswer). Bare: native, also where
		// an offered one was answered before.
		syn := s.syn(v6, 1000)
		s.send(syn)
		s.answered(syn)
		s.send(syn.without())
		require.True(t, s.kernelAnswers(syn, patience))
		require.Equal(t, StateNone, s.state(syn))

		// After the third segment any SYN goes to the wire endpoint.
		next := s.syn(v6, 5000)
		s.begin(next)
		syn = next
		syn.seq = 1000
		for _, state := range []State{StateWire, StateServing, StateRaw} {
			require.NoError(t, s.d.Transition(s.tuple(next), 5000, state))
			for _, again := range []segment{next, next.without(), syn, syn.without()} {
				s.send(again)
				s.steered(again)
				require.Equal(t, state, s.state(next))
			}
		}

		// On a dead entry it deletes the entry and is as new.
		require.NoError(t, s.d.Transition(s.tuple(next), 5000, StateDead))
		s.begin(syn)
		require.Equal(t, StateWire, s.state(syn))
		require.NoError(t, s.d.Transition(s.tuple(syn), 1000, StateDead))
		s.send(syn.without())
		require.True(t, s.kernelAnswers(syn, patience))
		require.Equal(t, StateNone, s.state(syn))
	}
}

// Offers that are left to the kernel, which ignores the option.
func TestInboundRefused(t *testing.T) {
	t.Parallel()
	s := newServer(t, config(accelerate(6379, 6380)))
	peer := netip.MustParseAddr(ghost4)
	nothing := func() error { return nil }
	for _, v := range []struct {
		name        string
		change      func(*segment)
		reason      uint8
		setup, undo func() error
	}{
		{"no timestamps", func(g *segment) { g.options = pad(smgw(roleOffer, 1)) }, ReasonSYNOptions, nothing, nothing},
		{"payload", func(g *segment) { g.payload = []byte("x") }, ReasonSYNOptions, nothing, nothing},
		{"mptcp", func(g *segment) { g.options = pad(timestamps(), []byte{30, 4, 1, 0}, smgw(roleOffer, 1)) }, ReasonSYNOptions, nothing, nothing},
		{"fast open", func(g *segment) { g.options = pad(timestamps(), []byte{34, 2}, smgw(roleOffer, 1)) }, ReasonSYNOptions, nothing, nothing},
		{"old fast open", func(g *segment) { g.options = pad(timestamps(), []byte{254, 4, 0xf9, 0x89}, smgw(roleOffer, 1)) }, ReasonSYNOptions, nothing, nothing},
		{"ecn", func(g *segment) { g.flags |= 0xc0 }, ReasonSYNOptions, nothing, nothing},
		{"off", func(*segment) {}, ReasonOff, func() error { return s.d.SetOff(true) }, func() error { return s.d.SetOff(false) }},
		{"observe", func(*segment) {}, ReasonMode, func() error { return s.d.SetMode(ModeObserve) }, func() error { return s.d.SetMode(ModeEnforce) }},
		{
			"accept lost", func(*segment) {}, ReasonAcceptLost,
			func() error { return s.d.Remember(peer, 0, ReasonAcceptLost, time.Minute) },
			func() error { return s.d.Forget(peer, 0) },
		},
		{
			"policy", func(*segment) {}, ReasonPolicy,
			func() error {
				return s.d.SetPolicy([]Rule{{UIDs: []uint32{0}, Action: ActionAccelerate}, {Peers: []netip.Prefix{netip.MustParsePrefix("10.78.0.0/16")}, Action: ActionAccelerate}})
			},
			func() error { return s.d.SetPolicy(accelerate(6379, 6380)) },
		},
	} {
		require.NoError(t, v.setup(), v.name)
		syn := s.syn(false, 1000)
		v.change(&syn)
		before := nativeCount(t, s.d, SideServer, v.reason)
		s.send(syn)
		require.True(t, s.kernelAnswers(syn, patience), v.name)
		require.Equal(t, before+1, nativeCount(t, s.d, SideServer, v.reason), v.name)
		require.Equal(t, StateNone, s.state(syn), v.name)
		require.NoError(t, v.undo(), v.name)
	}
	// Reason of another kind does not concern its offers.
	require.NoError(t, s.d.Remember(peer, 0, 33, time.Minute))
	syn := s.syn(false, 1000)
	s.begin(syn)
	// No listener: the kernel refuses.
	syn = s.syn(false, 1000)
	syn.dst = addrPort("10.77.0.2:6380")
	s.send(syn)
	_, ok := s.wire.next(patience, func(g segment) bool { return g.dst == syn.src && g.flags&flagRST != 0 })
	require.True(t, ok)
	// In transit: not ours, though the wildcard listener would match.
	syn = s.syn(false, 1000)
	syn.dst = addrPort("10.77.0.77:6379")
	s.send(syn)
	require.Never(t, func() bool { return s.state(syn) != StateNone }, 50*time.Millisecond, 10*time.Millisecond)
}

// A dead gateway: entries of the handshake go, the kernel takes over.
func TestInboundStale(t *testing.T) {
	t.Parallel()
	s := newServer(t, config(accelerate(6379)))
	syn := s.syn(false, 1000)
	s.begin(syn)
	require.NoError(t, s.d.StopHeartbeat())
	s.send(syn) // the client's retransmission
	require.True(t, s.kernelAnswers(syn, patience))
	require.Equal(t, StateNone, s.state(syn))
	require.EqualValues(t, 1, nativeCount(t, s.d, SideServer, ReasonGatewayStale))
}

// icmpError builds "fragmentation needed" or "packet too big" with quoted as its
// cause; the programs do not look at checksums.
func icmpError(src, dst netip.Addr, quoted []byte) []byte {
	icmp := append([]byte{3, 4, 0, 0, 0, 0, 5, 0}, quoted[:28]...)
	proto := uint8(packet.ProtoICMP)
	if src.Is6() {
		icmp = append([]byte{2, 0, 0, 0, 0, 0, 5, 0}, quoted...)
		proto = packet.ProtoICMPv6
	}
	h := packet.Header{Src: src, Dst: dst, Proto: proto, TTL: 64}
	ip := make([]byte, h.Len())
	h.Put(ip, len(icmp))
	return append(ip, icmp...)
}

// A TUN as wire device (no link header) works like Ethernet: the offer is
// recorded, the answer recognised, and a returned SYN arrives on it.
func TestLayer3Device(t *testing.T) {
	t.Parallel()
	requireRoot(t)
	h := newHost(t)
	fd := h.layer3(t)
	defer func() { _ = unix.Close(fd) }()
	cfg := config(accelerate(6379))
	cfg.Devices = []string{"l3"}
	d := h.open(cfg)
	h.echo("6379")
	require.Equal(t, 1500, d.WireMTU())
	local, err := h.begin(unix.AF_INET, addrPort("10.78.0.2:6379"))
	require.NoError(t, err)
	syn := readTUN(t, fd, isSYN(6379))
	role, nonce, ok := syn.offer()
	require.True(t, ok)
	require.EqualValues(t, roleOffer, role)
	writeTUN(t, fd, syn.reply(flagSYN|flagACK, 7000, pad(timestamps(), smgw(roleAccept, nonce))))
	f, sa := negotiated(t, d)
	require.Equal(t, local, f.Tuple.Local)
	// The wire leg leaves through it.
	writeTUN(t, d.WireTUN(), sa.reply(flagACK, sa.ack, nil))
	readTUN(t, fd, func(s segment) bool { return s.flags == flagACK && s.ack == 7001 })
	// A SYN that user space returns arrives on it.
	in := segment{
		src: addrPort("10.78.0.2:999"), dst: addrPort("10.78.0.1:6379"), flags: flagSYN, seq: 50,
		options: pad(timestamps(), smgw(roleOffer, 9)),
	}
	writeTUN(t, fd, in)
	answer := readTUN(t, fd, func(s segment) bool { return s.flags == flagSYN|flagACK && s.ack == 51 })
	require.True(t, sound(answer.raw))
	writeTUN(t, fd, answer.third())
	readTUN(t, d.WireTUN(), func(s segment) bool { return s.seq == 51 })
	require.NoError(t, d.Transition(Tuple{Local: in.dst, Remote: in.src}, 50, StateReturned, StateWire))
	require.NoError(t, d.InjectApp(in.bytes(t)))
	readTUN(t, fd, func(s segment) bool { return s.flags == flagSYN|flagACK && s.ack == 51 })
}

// The gateway stands still between its dial and ACCEPT, and the client's has given up: its
// kernel's SYN ends what the application has of the gateway's, and is answered.
func TestGivenUpServing(t *testing.T) {
	t.Parallel()
	s := newServer(t, config(accelerate(6379)))
	syn := s.syn(false, 1000)
	s.begin(syn)
	require.NoError(t, s.d.Transition(s.tuple(syn), 1000, StateServing, StateWire))
	dial := net.Dialer{Timeout: patience, LocalAddr: net.TCPAddrFromAddrPort(syn.src), Control: gatewaySocket("tcp4")}
	dial.SetMultipathTCP(false)
	var leg net.Conn
	var err error
	legsOf(t, s.d).do(func() { leg, err = dial.Dial("tcp4", syn.dst.String()) })
	require.NoError(t, err)
	defer func() { _ = leg.Close() }()
	require.NoError(t, s.d.setControl(func(c *smcgwControl) { c.HeartbeatTimeout = 1 })) // late from now on
	s.send(syn.without())
	challenge, ok := s.wire.next(patience, func(g segment) bool { return g.dst == syn.src && g.flags == flagACK })
	require.True(t, ok, "the kernel challenges")
	require.Equal(t, StateNone, s.state(syn))
	s.send(segment{src: syn.src, dst: syn.dst, flags: flagRST, seq: challenge.ack})
	s.send(syn.without())
	require.True(t, s.kernelAnswers(syn, patience))
}
