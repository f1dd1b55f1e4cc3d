package ebpf

import (
	"encoding/binary"
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
