package netstack

import (
	"encoding/binary"
	"net/netip"
	"testing"
	"time"

	"github.com/smcgw/smcgw/lab/wire"
	"github.com/smcgw/smcgw/netstack/link"

	"github.com/stretchr/testify/require"
	"gvisor.dev/gvisor/pkg/tcpip/faketime"

	"github.com/smcgw/smcgw/packet"
)

// bench is a stack whose wire is in the hands of the test.
type bench struct {
	t    *testing.T
	s    *Stack
	link *wire.Pipe
	h    *recorder
	out  chan []byte
	isn  map[netip.AddrPort]uint32 // of the last connection that was proved, by its client
}

func newBench(t *testing.T, cfg Config) *bench {
	t.Helper()
	b := &bench{t: t, h: newRecorder(), out: make(chan []byte, 1000), isn: map[netip.AddrPort]uint32{}}
	b.h.steered = func(syn SYN) bool {
		isn, ok := b.isn[syn.Tuple.Remote]
		return ok && isn == syn.ISN
	}
	b.link = wire.NewPipe(testMTU, func(p []byte) { b.out <- p })
	cfg.Link, cfg.Handler = b.link, b.h
	var err error
	b.s, err = New(cfg)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.s.Close()) })
	return b
}

// next returns the next segment the stack sends.
func (b *bench) next() (p packet.IP, t packet.TCP) {
	b.t.Helper()
	select {
	case raw := <-b.out:
		p, t, ok := parseTCP(raw)
		require.True(b.t, ok)
		require.True(b.t, p.HeaderSumOK())
		buf := link.Buffer(raw)
		defer buf.DecRef()
		require.True(b.t, sumOK(p, buf), "checksum")
		return p, t
	case <-time.After(patience):
		require.FailNow(b.t, "nothing sent")
		return packet.IP{}, nil
	}
}

func (b *bench) silent() {
	b.t.Helper()
	select {
	case raw := <-b.out:
		require.Failf(b.t, "unexpected segment", "%x", raw)
	case <-time.After(30 * time.Millisecond):
	}
}

// fromClient sends a segment of the client, with timestamps.
func (b *bench) fromClient(port uint16, seq, ack uint32, flags byte, role packet.Role, payload string) {
	opts := timestamps()
	if role != 0 {
		opts = appendOption(opts, role, testNonce)
	}
	src := netip.AddrPortFrom(client4, port)
	b.link.Inject(segmentOf(src, serverAddr(false), seq, ack, flags, opts, []byte(payload)))
}

func (b *bench) accept(port uint16, isn uint32) *Conn {
	b.t.Helper()
	b.prove(port, isn, packet.RoleConfirm, "")
	return b.provedConn()
}

func TestFlowBound(t *testing.T) {
	b := newBench(t, Config{Limits: Limits{Flows: 1}})
	c := b.accept(1, 100)
	b.prove(2, 100, packet.RoleConfirm, "")
	require.Equal(t, []error{ErrOverload}, b.h.failures())
	require.EqualValues(t, 1, b.s.Stats().Shed)
	require.Equal(t, 1, b.h.proofs(), "the owner begins nothing for what there is no room for")
	c.Forget()
	b.accept(2, 100)
}

func TestDeadBound(t *testing.T) {
	b := newBench(t, Config{Limits: Limits{Dead: 3}})
	for port := uint16(1); port <= 5; port++ {
		b.accept(port, 100).Forget()
	}
	st := b.s.Stats()
	require.Equal(t, 3, st.Dead)
	require.EqualValues(t, 2, st.DeadEvicted)
	require.Len(t, b.s.flows.m, 3)
}

func TestWrongNonceDoesNotConfirm(t *testing.T) {
	b := newBench(t, Config{})
	b.isn[clientAddr(1)] = 100
	b.proveWith(1, 101, appendOption(provingStamps(), packet.RoleConfirm, testNonce+1), "")
	require.Equal(t, ConfirmNo, b.provedConn().Confirmed())
}

func TestBareSYN(t *testing.T) {
	b := newBench(t, Config{})
	bare := func(port uint16, isn uint32) { b.link.Inject(makeSYN(false, port, isn, 0)) }

	bare(1, 100) // unknown tuple
	require.Equal(t, 1, b.h.bareSYNs())

	c := b.accept(4, 100) // negotiating
	bare(4, 100)
	require.Equal(t, 2, b.h.bareSYNs())
	b.silent()

	c.MarkCarrying() // carrying: a challenge ACK (RFC 5961), nothing is killed
	for _, isn := range []uint32{100, 5000} {
		bare(4, isn)
		require.Equal(t, 2, b.h.bareSYNs())
	}
	_, seg := b.next()
	require.EqualValues(t, packet.FlagACK, seg.Flags())
	require.EqualValues(t, 101, seg.Ack())
	b.fromClient(4, 101, seg.Seq(), packet.FlagACK|packet.FlagPSH, packet.RoleConfirm, "alive")
	buf := make([]byte, 5)
	readFull(t, c, buf)
	require.Equal(t, "alive", string(buf))

	time.Sleep(challengedFor)
	c.Forget() // dead: asked again
	bare(4, 100)
	require.Equal(t, 3, b.h.bareSYNs())
}

// A SYN that was challenged by a connection about to end is asked again when it
// has ended.
func TestBareSYNBeforeTheEnd(t *testing.T) {
	b := newBench(t, Config{})
	asked := 0
	for port := uint16(1); asked == 0; port++ {
		c := b.accept(port, 100)
		c.MarkCarrying()
		begun := time.Now()
		b.link.Inject(makeSYN(false, port, 5000, 0))
		require.Zero(t, b.h.bareSYNs())
		c.Forget()
		if time.Since(begun) >= challengedFor { // too late: that is another case
			continue
		}
		within(t, "asked again", func() bool { return b.h.bareSYNs() == 1 })
		asked++
	}
}

func TestStackForget(t *testing.T) {
	b := newBench(t, Config{})
	tup := func(port uint16) Tuple {
		return Tuple{Local: serverAddr(false), Remote: netip.AddrPortFrom(client4, port)}
	}
	require.False(t, b.s.Forget(tup(1)))
	c := b.accept(2, 100)
	require.Equal(t, tup(2), c.Tuple())
	require.True(t, b.s.Forget(tup(2)))
	require.False(t, b.s.Forget(tup(2)))
	b.silent()
	require.Zero(t, b.s.Stats().Flows)
}

func TestBadChecksum(t *testing.T) {
	b := newBench(t, Config{})
	syn := makeSYN(false, 1, 100, packet.RoleOffer)
	syn[len(syn)-1] ^= 1
	b.link.Inject(syn)
	syn = makeSYN(false, 1, 100, packet.RoleOffer)
	syn[8]++ // TTL, under the header checksum
	b.link.Inject(syn)
	syn = makeSYN(true, 1, 100, packet.RoleOffer)
	syn[25]++
	b.link.Inject(syn)
	require.EqualValues(t, 3, b.s.Stats().ChecksumErrors)
	require.Zero(t, b.h.offers())

	c := b.accept(1, 100)
	p := segmentOf(c.RemoteAddr(), c.LocalAddr(), 101, c.f.sent.Load(), packet.FlagACK, nil, []byte("data"))
	p[len(p)-1] ^= 0x10
	b.link.Inject(p)
	_, err := c.Read(make([]byte, 4))
	require.ErrorIs(t, err, ErrWouldBlock)
	require.EqualValues(t, 4, b.s.Stats().ChecksumErrors)
}

// Ethernet pads small frames, and the kernel has not trimmed them yet.
func TestPadding(t *testing.T) {
	b := newBench(t, Config{})
	b.link.Inject(append(makeSYN(false, 1, 100, packet.RoleOffer), 0xde, 0xad, 0xbe, 0xef))
	b.silent()
	require.Len(t, b.h.offered[0].Raw, len(makeSYN(false, 1, 100, packet.RoleOffer)))
}

func TestUnknownTupleIsSilent(t *testing.T) {
	b := newBench(t, Config{})
	b.fromClient(9, 1, 1, packet.FlagACK, 0, "data")
	b.fromClient(9, 1, 1, packet.FlagRST, 0, "")
	b.silent()
	require.EqualValues(t, 2, b.s.Stats().Unknown)
}

// A client that sends again after our reset has not got it: it is told again.
func TestLostReset(t *testing.T) {
	b := newBench(t, Config{})
	b.accept(1, 100).Abort()
	_, seg := b.next()
	require.EqualValues(t, packet.FlagRST, seg.Flags()&packet.FlagRST)
	b.fromClient(1, 101, 7777, packet.FlagACK|packet.FlagPSH, 0, "again")
	_, seg = b.next()
	require.EqualValues(t, packet.FlagRST, seg.Flags())
	require.EqualValues(t, 7777, seg.Seq())
	b.fromClient(1, 101, 7777, packet.FlagACK|packet.FlagRST, 0, "")
	b.silent()
	require.EqualValues(t, 1, b.s.Stats().LateResets)
}

// A challenge ACK on an ended tuple is answered exactly, for the linger time.
func TestDeadTuple(t *testing.T) {
	clock := faketime.NewManualClock()
	b := newBench(t, Config{clock: clock})
	b.accept(1, 100).Forget()
	b.h.refuse = true
	b.silent()
	b.fromClient(1, 101, 7777, packet.FlagACK|packet.FlagPSH, 0, "late")
	b.fromClient(1, 101, 7777, packet.FlagACK|packet.FlagFIN, 0, "")
	b.fromClient(1, 101, 7777, packet.FlagACK|packet.FlagRST, 0, "")
	b.silent()
	require.EqualValues(t, 3, b.s.Stats().LateSegments)
	b.fromClient(1, 101, 7777, packet.FlagACK, 0, "")
	_, seg := b.next()
	require.EqualValues(t, packet.FlagRST, seg.Flags())
	require.EqualValues(t, 7777, seg.Seq())
	clock.Advance(5*time.Second + time.Millisecond)
	require.Zero(t, b.s.Stats().Dead)
	b.fromClient(1, 101, 7777, packet.FlagACK, 0, "")
	b.silent()
	require.EqualValues(t, 1, b.s.Stats().Unknown)
}

// A SYN-ACK on an ended tuple is an old one or belongs to a new connection.
func TestSYNACKOnDeadTuple(t *testing.T) {
	b := newBench(t, Config{})
	syn := makeSYN(false, 1, 100, packet.RoleOffer)
	synack := makeSYNACK(syn, 500, packet.RoleAccept, testNonce, 101)
	c, err := b.s.Adopt(syn, synack, time.Millisecond)
	require.NoError(t, err)
	b.next()
	c.Forget()
	b.link.Inject(synack)
	require.Empty(t, b.h.synacks)
	newer := makeSYNACK(syn, 900, packet.RoleAccept, testNonce, 2001)
	mirrored := makeSYNACK(syn, 900, packet.RoleOffer, testNonce, 2001)
	b.link.Inject(newer)
	b.link.Inject(mirrored)
	require.Len(t, b.h.synacks, 2)
	require.Equal(t, newer, b.h.synacks[0].Raw)
	require.Equal(t, mirrored, b.h.synacks[1].Raw)
}

func TestPathMTU(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		w := newWorld(t, worldOptions{})
		c, s := w.connect(v6)
		router := netip.MustParseAddr("192.0.2.1")
		if v6 {
			router = netip.MustParseAddr("2001:db8::1")
		}
		const pathMTU = 1300
		mss := int(c.f.segMax.Load())
		var blocked int
		w.wire.A().Impair(wire.Impairment{Filter: func(p []byte) []byte {
			if len(p) > pathMTU {
				blocked++
				w.gwIn.Inject(tooBig(router, p, pathMTU))
				return nil
			}
			return p
		}})
		transfer(t, c, s, 200000)
		transfer(t, s, c, 1000)
		require.NotZero(t, w.gw.Stats().ICMPDelivered)
		require.Less(t, int(c.f.segMax.Load()), mss)
	}
}

// Errors that quote what was never sent, or a path no path has, are lies.
func TestForgedICMP(t *testing.T) {
	w := newWorld(t, worldOptions{})
	c, s := w.connect(false)
	out := w.tap(w.wire.A())
	transfer(t, c, s, 3000)
	transfer(t, s, c, 10)
	within(t, "acked", func() bool { return c.f.una.Load() == c.f.sent.Load() })
	p := <-out
	router := netip.MustParseAddr("192.0.2.1")
	mss := int(c.f.segMax.Load())
	for _, seq := range []uint32{c.ISN() + 1, c.ISN() + 100000} {
		q, tcp, _ := parseTCP(p)
		q.Header, tcp = append([]byte(nil), q.Header...), append([]byte(nil), tcp...)
		binary.BigEndian.PutUint32(tcp[4:], seq)
		w.gwIn.Inject(tooBig(router, append(q.Header, tcp...), 1300))
	}
	q, tcp, _ := parseTCP(p)
	tcp = append([]byte(nil), tcp...)
	binary.BigEndian.PutUint32(tcp[4:], c.f.sent.Load())
	w.gwIn.Inject(tooBig(router, append(append([]byte(nil), q.Header...), tcp...), 68))
	require.EqualValues(t, 3, w.gw.Stats().ICMPIgnored)
	for _, at := range []int{len(q.Header) + 2, len(q.Header) + 6, -1} { // of the sum, the MTU, the quote
		damaged := tooBig(router, append(append([]byte(nil), q.Header...), tcp...), 1300)
		damaged[(at+len(damaged))%len(damaged)] ^= 1
		w.gwIn.Inject(damaged)
	}
	require.EqualValues(t, 3, w.gw.Stats().ChecksumErrors)
	require.Zero(t, w.gw.Stats().ICMPDelivered)
	require.Equal(t, mss, int(c.f.segMax.Load()))
	w.gwIn.Inject(tooBig(router, append(append([]byte(nil), q.Header...), tcp...), 1300))
	require.EqualValues(t, 1, w.gw.Stats().ICMPDelivered)
	require.Less(t, int(c.f.segMax.Load()), mss)
}
