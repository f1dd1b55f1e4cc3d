package ebpf

import (
	"encoding/binary"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/packet"
)

// stamped is a timestamp option.
func stamped(value, echo uint32) []byte {
	return binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32([]byte{8, 10}, value), echo)
}

// option returns the value of a TCP option.
func (s segment) option(kind byte) (value []byte, ok bool) {
	for _, o := range packet.OptionList(s.options).All() {
		if o.Kind() == kind {
			return o.Value(), true
		}
	}
	return nil, false
}

// sound reports whether the checksums of a raw packet are right.
func sound(pkt []byte) bool {
	p, err := packet.ParseIP(pkt)
	return err == nil && p.Whole() && p.HeaderSumOK() && p.TransportSumOK()
}

// answered waits for the SYN-ACK that the programs send for a client's SYN.
func (s *server) answered(syn segment) segment {
	s.t.Helper()
	sa, ok := s.wire.next(patience, func(g segment) bool {
		return g.dst == syn.src && g.flags == flagSYN|flagACK && g.ack == syn.seq+1
	})
	require.True(s.t, ok, "no answer")
	role, nonce, _ := sa.offer()
	_, offered, _ := syn.offer()
	require.EqualValues(s.t, roleAccept, role)
	require.Equal(s.t, offered, nonce)
	return sa
}

// third builds what a client's gateway answers to a SYN-ACK.
func (sa segment) third(opts ...[]byte) segment {
	stamps, _ := sa.option(8)
	opts = append([][]byte{stamped(2, binary.BigEndian.Uint32(stamps))}, opts...)
	return segment{src: sa.dst, dst: sa.src, flags: flagACK, seq: sa.ack, ack: sa.seq + 1, options: pad(opts...)}
}

// proposal is as much of a PROPOSAL as the programs look at.
var proposal = []byte("SMGW\x01\x01\x00\x09.")

// begin leads a client's connection to where user space first hears of it.
func (s *server) begin(syn segment) segment {
	s.t.Helper()
	s.send(syn)
	third := s.answered(syn).third(smgw(roleConfirm, 0x1234))
	third.payload = proposal
	s.send(third)
	s.steered(third)
	return third
}

// quiet fails if user space gets anything within a while.
func (s *server) quiet(what string) {
	s.t.Helper()
	buf := make([]byte, 2048)
	for end := time.Now().Add(50 * time.Millisecond); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if n, err := unix.Read(s.d.WireTUN(), buf); err == nil {
			g, _ := readSegment(buf[vnetHeaderLen:n])
			s.t.Fatalf("%s: user space got %+v", what, g)
		}
	}
}

// An offered SYN is answered without an entry and without user space; what the SYN
// asked for is in the answer, and comes back in the third segment.
func TestAnswer(t *testing.T) {
	t.Parallel()
	s := newServer(t, config(accelerate(6379)))
	for _, v6 := range []bool{false, true} {
		for name, v := range map[string]struct {
			asked []byte
			stamp byte // the lowest of the timestamp (docs/PROTOCOL.md "Cookies")
		}{
			"all":      {pad([]byte{2, 4, 0x05, 0xb4}, []byte{4, 2}, stamped(77, 0), []byte{1, 3, 3, 7}, smgw(roleOffer, 0x1234)), 0x7d},
			"no sack":  {pad([]byte{2, 4, 0x05, 0xb4}, stamped(77, 0), []byte{1, 3, 3, 7}, smgw(roleOffer, 0x1234)), 0x75},
			"no scale": {pad([]byte{2, 4, 0x05, 0xb4}, []byte{4, 2}, stamped(77, 0), smgw(roleOffer, 0x1234)), 0xfd},
			"bare":     {pad(smgw(roleOffer, 0x1234), stamped(77, 0)), 0xf0},
			"versions": {pad(smgw(0x21, 0x4321), smgw(roleOffer, 0x1234), stamped(77, 0)), 0xf0},
			"long":     {pad(smgw(roleOffer, 0x1234), []byte{2, 4, 0x23, 0}, []byte{4, 2}, stamped(77, 0), []byte{1, 3, 3, 14}, []byte{1, 1, 1, 1, 1, 1, 1, 1}), 0xef},
		} {
			syn := s.syn(v6, 1000)
			syn.options = v.asked
			s.send(syn)
			sa := s.answered(syn)
			require.True(t, sound(sa.raw), name)
			require.Equal(t, StateNone, s.state(syn), name)
			requireAnswer(t, name, syn, sa)
			stamps, _ := sa.option(8)
			require.Equal(t, []byte{0x12, 0x34}, stamps[:2], name)
			require.Equal(t, v.stamp, stamps[3], name)
			s.send(syn) // repeated: the same
			again := s.answered(syn)
			require.Equal(t, StateNone, s.state(syn), name)
			for _, a := range []segment{sa, again} {
				third := a.third()
				s.send(third)
				s.steered(third)
			}
			f, err := s.d.Flow(s.tuple(syn))
			require.NoError(t, err)
			require.Equal(t, StateWire, f.State)
			require.EqualValues(t, 1000, f.ISN)
			require.EqualValues(t, 0x1234, f.Nonce)
			require.Equal(t, 0, f.Rule)
			require.NoError(t, s.d.Delete(s.tuple(syn), 1000))
		}
	}
}

// requireAnswer compares the options of SYN and SYN-ACK.
func requireAnswer(t *testing.T, name string, syn, sa segment) {
	t.Helper()
	stamps, ok := sa.option(8)
	require.True(t, ok, name)
	require.EqualValues(t, 77, binary.BigEndian.Uint32(stamps[4:]), name)
	for _, kind := range []byte{3, 4} {
		_, asked := syn.option(kind)
		_, got := sa.option(kind)
		require.Equal(t, asked, got, "%s: option %d", name, kind)
	}
	mss, ok := sa.option(2)
	require.True(t, ok, name)
	headers := 40
	if syn.src.Addr().Is6() {
		headers = 60
	}
	require.EqualValues(t, 1500-headers, binary.BigEndian.Uint16(mss), name)
}

// What does not repeat the SYN-ACK exactly is the kernel's, which resets it.
func TestAnswerUnproved(t *testing.T) {
	t.Parallel()
	s := newServer(t, config(accelerate(6379)))
	for _, v6 := range []bool{false, true} {
		syn := s.syn(v6, 1000)
		s.send(syn)
		sa := s.answered(syn)
		for name, change := range map[string]func(*segment){
			"ack":       func(g *segment) { g.ack++ },
			"tick":      func(g *segment) { g.ack ^= 1 },
			"seq":       func(g *segment) { g.seq++ },
			"challenge": func(g *segment) { g.seq += uint32(len(proposal)) }, // what a gateway answers to a second SYN-ACK when its first segment is lost
			"port":      func(g *segment) { g.src = netip.AddrPortFrom(g.src.Addr(), g.src.Port()^1) },
			"nonce":     func(g *segment) { g.options[6] ^= 1 },
			"time":      func(g *segment) { g.options[8] ^= 1 },
			"scale":     func(g *segment) { g.options[9] ^= 16 },
			"no stamps": func(g *segment) { g.options = nil },
			"syn-ack":   func(g *segment) { g.flags |= flagSYN },
			"rst":       func(g *segment) { g.flags |= flagRST },
		} {
			third := sa.third() // its options begin with the timestamps
			change(&third)
			s.send(third)
			s.quiet(name)
			require.Equal(t, StateNone, s.state(syn), name)
		}
		third := sa.third()
		s.send(third)
		s.steered(third)
	}
}

// A client's gateway that has proved its address and says nothing, or half of what it
// has to, is not heard before it has said the rest.
func TestAnswerSilent(t *testing.T) {
	t.Parallel()
	s := newServer(t, config(accelerate(6379)))
	for _, v6 := range []bool{false, true} {
		syn := s.syn(v6, 1000)
		s.send(syn)
		third := s.answered(syn).third(smgw(roleConfirm, 0x1234))
		for n := range len(proposal) {
			third.payload = proposal[:n]
			s.send(third)
		}
		third.payload = append([]byte("smgw"), proposal[4:]...)
		s.send(third)
		s.quiet("silence")
		require.Equal(t, StateNone, s.state(syn))
		third.payload = proposal
		s.send(third)
		s.steered(third)
	}
	require.EqualValues(t, 2*(len(proposal)+1), stat(t, s.d, "silent_drop"))
}

// A tuple on which the kernel has a connection, or half of one, is the kernel's.
func TestAnswerKernelKnows(t *testing.T) {
	t.Parallel()
	s := newServer(t, config(accelerate(6379)))
	syn := s.syn(false, 1000)
	s.send(syn)
	third := s.answered(syn).third()
	s.send(syn.without())
	require.True(t, s.kernelAnswers(syn, patience))
	s.send(third)
	s.quiet("third segment after a bare SYN")
	require.Equal(t, StateNone, s.state(syn))
}

// The answer of a gateway that is late waits for it; of one that is gone, and of
// other programs, it is the kernel's.
func TestAnswerStale(t *testing.T) {
	t.Parallel()
	s := newServer(t, config(accelerate(6379)))
	syn := s.syn(false, 1000)
	s.send(syn)
	third := s.answered(syn).third()
	require.NoError(t, s.d.StopHeartbeat())
	s.send(third)
	_, reset := s.wire.next(patience, func(g segment) bool { return g.dst == syn.src && g.flags&flagRST != 0 })
	require.True(t, reset)
	require.Equal(t, StateNone, s.state(syn))
}

// Beyond what a processor answers in a second, and what user space takes on, an
// offer is as a plain SYN.
func TestAnswerBudget(t *testing.T) {
	t.Parallel()
	cfg := config(accelerate(6379))
	cfg.answers = 3
	s := newServer(t, cfg)
	for range 40 {
		s.send(s.syn(false, 1000))
	}
	require.Eventually(t, func() bool {
		return stat(t, s.d, "answered")+nativeCount(t, s.d, SideServer, ReasonRateLimit) == 40
	}, patience, time.Millisecond)
	require.Greater(t, nativeCount(t, s.d, SideServer, ReasonRateLimit), uint64(0))
	require.EqualValues(t, 0, len(s.flows()))
}

func TestAnswerCrowded(t *testing.T) {
	t.Parallel()
	s := newServer(t, config(accelerate(6379)))
	require.NoError(t, s.d.SetProofs(1))
	refused := func() bool { return nativeCount(t, s.d, SideServer, ReasonRateLimit) > 0 }
	for end := time.Now().Add(patience); !refused() && time.Now().Before(end); {
		syn := s.syn(false, 1000)
		s.send(syn)
		sa, ok := s.wire.next(patience, func(g segment) bool { return g.dst == syn.src && g.flags == flagSYN|flagACK })
		require.True(t, ok)
		if role, _, ok := sa.offer(); ok && role == roleAccept {
			s.send(sa.third())
		}
	}
	require.True(t, refused())
	require.NoError(t, s.d.SetProofs(0))
	s.begin(s.syn(false, 1000))
}

// flows lists the entries.
func (s *server) flows() []Flow { return flows(s.t, s.d) }

func flows(t testing.TB, d *Datapath) (all []Flow) {
	t.Helper()
	require.NoError(t, d.walk(func(k *smcgwFlowKey, v *smcgwFlow) bool {
		all = append(all, v.flow(*k))
		return true
	}))
	return all
}

// A cookie outlasts sweeps for as long as an answer may take.
func TestAnswerSwept(t *testing.T) {
	t.Parallel()
	s := newServer(t, config(accelerate(6379)))
	syn := s.syn(false, 1000)
	s.send(syn)
	sa := s.answered(syn)
	for range 7 {
		_, err := s.d.Sweep(SweepLimits{})
		require.NoError(t, err)
	}
	third := sa.third()
	s.send(third)
	s.steered(third)
}

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
