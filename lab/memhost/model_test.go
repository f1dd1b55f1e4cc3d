package memhost

import (
	"encoding/binary"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/ebpf"
	"github.com/smcgw/smcgw/packet"
)

const (
	syn    = packet.FlagSYN
	ack    = packet.FlagACK
	rst    = packet.FlagRST
	appISN = 1000
)

// testModel is the steering of one host with a fresh heartbeat; packets are
// decided, not delivered.
func testModel(t *testing.T, change func(*ebpf.Config)) *Model {
	t.Helper()
	_, h := testNetwork(t, "h1")
	cfg := ebpf.Config{
		Mode: ebpf.ModeEnforce, HeartbeatTimeout: time.Hour, Policy: []ebpf.Rule{{Action: ebpf.ActionAccelerate}},
	}
	if change != nil {
		change(&cfg)
	}
	m, err := newModel(h[0], cfg)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, m.Close()) })
	require.NoError(t, m.Heartbeat())
	return m
}

// tcpPacket is a raw IPv4 segment with options.
func tcpPacket(from, to netip.AddrPort, seq, ackSeq uint32, flags uint8, options []byte, payload int) []byte {
	for len(options)%4 != 0 {
		options = append(options, packet.KindNOP)
	}
	return packet.Segment{
		Src: from, Dst: to, Seq: seq, Ack: ackSeq, Flags: flags, Options: options, Payload: make([]byte, payload),
	}.Append(nil)
}

var timestamps = []byte{8, 10, 0, 0, 0, 1, 0, 0, 0, 0}

func option(role packet.Role, nonce uint16) []byte {
	return packet.AppendOption(append([]byte(nil), timestamps...), packet.Option{
		Version: packet.OptionVersion, Role: role, Nonce: nonce,
	})
}

// peerHost is the other host, flowTuple a connection of ours to it.
var peerHost = netip.MustParseAddrPort("10.9.9.9:7000")

func flowTuple(m *Model) ebpf.Tuple {
	return ebpf.Tuple{Local: netip.AddrPortFrom(m.host.v4, 40000), Remote: peerHost}
}

// out decides a packet of the applications' kernel, in one from the network, and
// wire one of netstack.
func (m *Model) out(t *testing.T, seq, ackSeq uint32, flags uint8, opts []byte) (verdict, segment) {
	t.Helper()
	f := flowTuple(m)
	s, ok := parseSegment(tcpPacket(f.Local, f.Remote, seq, ackSeq, flags, opts, 0), outbound)
	require.True(t, ok)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.sockops(&s)
	return m.wireEgress(&s), s
}

func (m *Model) in(t *testing.T, seq, ackSeq uint32, flags uint8, opts []byte, payload int) verdict {
	t.Helper()
	f := flowTuple(m)
	s, ok := parseSegment(tcpPacket(f.Remote, f.Local, seq, ackSeq, flags, opts, payload), inbound)
	require.True(t, ok)
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.wireIngress(&s)
}

func (m *Model) state(t *testing.T) ebpf.State {
	t.Helper()
	f, err := m.Flow(flowTuple(m))
	if err != nil {
		require.ErrorIs(t, err, ebpf.ErrNoFlow)
	}
	return f.State
}

// offered lets a SYN leave and returns its nonce.
func (m *Model) offered(t *testing.T, isn uint32) uint16 {
	t.Helper()
	v, s := m.out(t, isn, 0, syn, timestamps)
	require.Equal(t, pass, v)
	o, ok := s.option()
	require.True(t, ok)
	require.Equal(t, packet.RoleOffer, o.Role)
	require.Equal(t, ebpf.StateOffered, m.state(t))
	return o.Nonce
}

func (m *Model) event(t *testing.T) ebpf.Event {
	t.Helper()
	select {
	case e := <-m.events:
		return e
	default:
		require.FailNow(t, "no event")
		return ebpf.Event{}
	}
}

// TestClientTable: from the offer to every state of a client.
func TestClientTable(t *testing.T) {
	m := testModel(t, nil)
	tuple := flowTuple(m)
	for _, c := range []struct {
		name   string
		role   packet.Role
		wrong  uint16 // added to the nonce
		want   verdict
		state  ebpf.State
		reason uint8
	}{
		{"accept", packet.RoleAccept, 0, toNetstack, ebpf.StateNegotiating, 0},
		{"wrong nonce", packet.RoleAccept, 1, pass, ebpf.StateNone, ebpf.ReasonPeerNoOption},
		{"mirrored", packet.RoleOffer, 0, pass, ebpf.StateNone, ebpf.ReasonOptionMirrored},
	} {
		nonce := m.offered(t, appISN)
		require.Equal(t, pass, m.in(t, 1, appISN+2, syn|ack, option(c.role, nonce), 0), "%s: another's ack", c.name)
		require.Equal(t, c.want, m.in(t, 1, appISN+1, syn|ack, option(c.role, nonce+c.wrong), 0), c.name)
		require.Equal(t, c.state, m.state(t), c.name)
		if c.reason != 0 {
			require.Equal(t, c.reason, m.event(t).Reason, c.name)
		}
		_ = m.Delete(tuple, appISN)
		m.notes = map[ebpf.Tuple]*note{}
	}
	nonce := m.offered(t, appISN)
	m.in(t, 1, appISN+1, syn|ack, option(packet.RoleAccept, nonce), 0)
	v, _ := m.out(t, appISN, 0, syn, timestamps)
	require.Equal(t, drop, v, "retransmission while negotiating")
	require.NoError(t, m.Transition(tuple, appISN, ebpf.StateCompleting, ebpf.StateNegotiating))
	require.ErrorIs(t, m.Transition(tuple, appISN, ebpf.StateCompleting, ebpf.StateNegotiating), ebpf.ErrState)
	require.ErrorIs(t, m.Transition(tuple, appISN+1, ebpf.StateDead), ebpf.ErrReplaced)
	v, _ = m.out(t, appISN+1, 2, ack, nil)
	require.Equal(t, toSocket, v)
	require.Equal(t, toNetstack, m.in(t, 2, appISN+1, ack, nil, 5))
	require.NoError(t, m.Transition(tuple, appISN, ebpf.StateDead))
	require.Equal(t, toNetstack, m.in(t, 2, appISN+1, ack, nil, 0), "a pure ACK may be a challenge")
	require.Equal(t, drop, m.in(t, 2, appISN+1, ack, nil, 5))
	require.NoError(t, m.Transition(tuple, appISN, ebpf.StateCarrying))
	m.offered(t, appISN+5)
	e := m.event(t)
	require.Equal(t, ebpf.EventReplaced, e.Kind)
	require.EqualValues(t, appISN, e.ISN)
}

// TestRetry: the bare retransmission releases the entry, so that an accept that
// comes late is not taken for its answer; two of them blackhole the destination.
func TestRetry(t *testing.T) {
	m := testModel(t, func(c *ebpf.Config) { c.Retry = time.Minute })
	for i := range uint32(2) {
		isn := appISN + 10*i
		nonce := m.offered(t, isn)
		v, s := m.out(t, isn, 0, syn, timestamps)
		require.Equal(t, pass, v)
		_, has := s.option()
		require.False(t, has, "bare")
		require.Equal(t, ebpf.StateReleased, m.state(t))
		require.Equal(t, drop, m.in(t, 1, isn+1, syn|ack, option(packet.RoleAccept, nonce), 0))
		require.Equal(t, drop, m.in(t, 1, isn+1, ack, nil, 3))
		m.flows[flowTuple(m)].ChangedAt -= challenged + time.Millisecond
		require.Equal(t, pass, m.in(t, 1, isn+3, ack, nil, 3), "the kernel resets whom a gateway left behind")
		require.Equal(t, drop, m.in(t, 1, isn+1, syn|ack, option(packet.RoleAccept, nonce), 0))
		require.Equal(t, pass, m.in(t, 7, isn+1, syn|ack, timestamps, 0))
		require.Equal(t, ebpf.StateNone, m.state(t))
		v, _ = m.out(t, isn+1, 8, ack, nil)
		require.Equal(t, pass, v)
		require.Equal(t, ebpf.ReasonOptionBlackholed, m.event(t).Reason)
	}
	v, s := m.out(t, appISN+100, 0, syn, timestamps)
	require.Equal(t, pass, v)
	_, has := s.option()
	require.False(t, has)
	require.Equal(t, ebpf.ReasonOptionBlackholed, m.event(t).Reason)
	peers, err := m.Peers()
	require.NoError(t, err)
	require.Len(t, peers, 1)
	require.InDelta(t, time.Minute, peers[0].TTL, float64(time.Second))
}

// TestServerTable: offered SYNs from the network.
func TestServerTable(t *testing.T) {
	m := testModel(t, nil)
	offer := option(packet.RoleOffer, 9)
	require.Equal(t, pass, m.in(t, 50, 0, syn, offer, 0), "nobody listens")
	l, err := m.host.kernel.Listen(flowTuple(m).Local)
	require.NoError(t, err)
	defer l.Close()
	require.Equal(t, toWire, m.in(t, 50, 0, syn, offer, 0))
	require.Equal(t, toWire, m.in(t, 50, 0, syn, offer, 0), "a duplicate")
	later := packet.AppendOption(nil, packet.Option{Version: packet.OptionVersion + 1, Role: packet.RoleOffer, Nonce: 8})
	require.Equal(t, toWire, m.in(t, 50, 0, syn, append(later, offer...), 0), "two versions")
	require.Equal(t, ebpf.StateNone, m.state(t))
	require.Equal(t, pass, m.in(t, 50, 0, syn, timestamps, 0), "the client fell back")
	require.Equal(t, pass, m.in(t, 51, 1, ack, timestamps, 0), "not what it was told")
	sa := m.answerTo(t, 50, offer)
	require.Equal(t, pass, m.in(t, 52, sa.seq+1, ack, echo(sa), 0), "of another SYN")
	require.Equal(t, pass, m.in(t, 51, sa.seq+1, ack, timestamps, 0), "without our timestamp")
	confirm := packet.AppendOption(echo(sa), packet.Option{Version: packet.OptionVersion, Role: packet.RoleConfirm, Nonce: 9})
	require.Equal(t, drop, m.in(t, 51, sa.seq+1, ack, confirm, 0), "a gateway that says nothing")
	require.Equal(t, drop, m.in(t, 51, sa.seq+1, ack, confirm, 220), "no PROPOSAL")
	require.Equal(t, ebpf.StateNone, m.state(t))
	require.Equal(t, toNetstack, m.in(t, 51, sa.seq+1, ack, echo(sa), 0))
	require.Equal(t, ebpf.StateWire, m.state(t))
	require.Equal(t, toNetstack, m.in(t, 50, 0, syn, offer, 0), "a duplicate")
	require.Equal(t, toNetstack, m.in(t, 50, 0, syn, timestamps, 0), "after the third ACK")
	require.Equal(t, ebpf.StateWire, m.state(t))
	require.NoError(t, m.change(func() { m.beat = 0 }))
	require.Equal(t, pass, m.in(t, 51, 1, ack, nil, 0), "the gateway is gone")
	require.Equal(t, ebpf.StateNone, m.state(t))
	require.Equal(t, pass, m.in(t, 50, 0, syn, offer, 0))
	require.Equal(t, ebpf.ReasonGatewayStale, m.event(t).Reason)
}

// answerTo is the SYN-ACK for an offered SYN.
func (m *Model) answerTo(t *testing.T, seq uint32, opts []byte) segment {
	t.Helper()
	f := flowTuple(m)
	s, ok := parseSegment(tcpPacket(f.Remote, f.Local, seq, 0, syn, opts, 0), inbound)
	require.True(t, ok)
	m.mu.Lock()
	defer m.mu.Unlock()
	require.Equal(t, toWire, m.wireIngress(&s))
	sa, ok := parseSegment(s.raw, outbound)
	require.True(t, ok)
	require.True(t, sa.synACK())
	require.Equal(t, seq+1, sa.ack)
	return sa
}

// echo are the timestamps of the client's answer to a SYN-ACK.
func echo(sa segment) []byte {
	value, _, _ := sa.stamps()
	return append([]byte{1, 1, 8, 10, 0, 0, 0, 1}, binary.BigEndian.AppendUint32(nil, value)...)
}

// TestBounds: a full table sheds to native TCP.
func TestBounds(t *testing.T) {
	m := testModel(t, func(c *ebpf.Config) { c.MaxFlows = 16 })
	for i := range 16 {
		m.flows[ebpf.Tuple{Local: netip.AddrPortFrom(m.host.v4, uint16(i))}] = &ebpf.Flow{State: ebpf.StateCarrying}
	}
	v, s := m.out(t, appISN, 0, syn, timestamps)
	require.Equal(t, pass, v)
	_, has := s.option()
	require.False(t, has, "neutralised")
	require.Equal(t, ebpf.ReasonFlowLimit, m.event(t).Reason)
}

// TestSweep: entries without an end, by age.
func TestSweep(t *testing.T) {
	m := testModel(t, nil)
	m.offered(t, appISN)
	n, err := m.Sweep(ebpf.SweepLimits{})
	require.NoError(t, err)
	require.Zero(t, n)
	time.Sleep(2 * time.Millisecond)
	n, err = m.Sweep(ebpf.SweepLimits{Offered: time.Millisecond})
	require.NoError(t, err)
	require.Equal(t, 1, n)
}

// TestCounterNames: the model counts under the names of the programs.
func TestCounterNames(t *testing.T) {
	source, err := os.ReadFile("../../ebpf/counters.go")
	require.NoError(t, err)
	for _, name := range []string{
		statOffered, statAccepted, statServed, statAnswered, statReplaced, statSYNRetransmitDrop, statOutDrop, statAppIngressDrop,
		statLegIngressDrop, statWireIngressDrop, statReleasedDrop, statReturnedDrop, statDeadDrop, statEventLost,
		statSilentDrop, statOfferRefused, statNeutralised, statStaleDeleted, statSYNDelivered, statSYNReleased, statSYNReturned,
	} {
		require.Contains(t, string(source), `"`+name+`"`)
	}
}

// TestRefusedOffer: the answer to an offered SYN that refuses is not the application's
// before the bare one has had it, too.
func TestRefusedOffer(t *testing.T) {
	m := testModel(t, nil)
	m.offered(t, appISN)
	require.Equal(t, pass, m.in(t, 1, appISN+1, rst|ack, nil, 0))
	require.Equal(t, ebpf.StateReleased, m.state(t))
	bare, ok := parseSegment(m.again, outbound)
	require.True(t, ok)
	require.True(t, bare.synOnly())
	require.EqualValues(t, appISN, bare.seq)
	_, offered := bare.option()
	require.False(t, offered)
	require.Equal(t, pass, m.in(t, 1, appISN+1, rst|ack, nil, 0))
	require.Equal(t, ebpf.StateNone, m.state(t))
}
