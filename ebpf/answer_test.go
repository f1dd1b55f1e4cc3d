package ebpf

import (
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// client is one side of a pair on which the test plays the other.
type client struct {
	t      *testing.T
	h1, h2 *host
	d      *Datapath
	wire   *sniffer
	rec    *recorder
}

// newClient makes a host with a datapath and a ghost to connect to.
func newClient(t *testing.T, cfg Config) *client {
	t.Helper()
	c := &client{t: t}
	c.h1, c.h2 = newPair(t)
	c.h1.ghosts(c.h2)
	c.d = c.h1.open(cfg)
	c.rec = record(t, c.d)
	c.wire = c.h2.sniff("w0")
	return c
}

// offered starts a connection and returns its SYN and tuple.
func (c *client) offered(to string) (segment, Tuple) {
	c.t.Helper()
	dst := addrPort(to)
	family := unix.AF_INET
	if dst.Addr().Is6() {
		family = unix.AF_INET6
	}
	local, err := c.h1.begin(family, dst)
	require.NoError(c.t, err)
	syn, ok := c.wire.next(patience, func(s segment) bool { return s.src == local && s.flags&flagSYN != 0 })
	require.True(c.t, ok)
	return syn, Tuple{Local: local, Remote: dst}
}

// answered starts a connection whose SYN is answered by answer before the kernel sends it
// again, 1 s later, and returns its SYN and tuple.
func (c *client) answered(to string, answer func(syn segment, nonce uint16) segment) (segment, Tuple) {
	c.t.Helper()
	for end := time.Now().Add(patience); ; {
		begun := time.Now()
		syn, tuple := c.offered(to)
		_, nonce, ok := syn.offer()
		require.True(c.t, ok)
		c.h2.send(c.h1, answer(syn, nonce).bytes(c.t))
		if time.Since(begun) < time.Second*3/4 {
			return syn, tuple
		}
		require.True(c.t, time.Now().Before(end), "no SYN is answered in time")
	}
}

// accepts is the SYN-ACK of a gateway.
func accepts(syn segment, nonce uint16) segment {
	return syn.reply(flagSYN|flagACK, 7000, pad(timestamps(), smgw(roleAccept, nonce)))
}

// kernelAnswered waits for the ACK of the application's kernel.
func (c *client) kernelAnswered(syn segment) bool { return c.kernelAnswers(syn, patience) }

func (c *client) kernelAnswers(syn segment, within time.Duration) bool {
	_, ok := c.wire.next(within, func(s segment) bool {
		return s.src == syn.src && s.flags&(flagSYN|flagACK) == flagACK && s.seq == syn.seq+1
	})
	return ok
}

// state is the state of a tuple's entry, none if there is none.
func (c *client) state(t Tuple) State {
	f, err := c.d.Flow(t)
	if err != nil {
		require.ErrorIs(c.t, err, ErrNoFlow)
		return StateNone
	}
	return f.State
}

// What the SYN-ACK decides.
func TestAnswers(t *testing.T) {
	t.Parallel()
	c := newClient(t, config(accelerate(6379)))
	for _, dst := range []string{ghost4 + ":6379", "[" + ghost6 + "]:6379"} {
		for _, v := range []struct {
			name   string
			option func(nonce uint16) []byte
			ack    uint32 // added to the right one
			state  State
			native bool // the kernel gets the SYN-ACK
			reason uint8
		}{
			{"accept", func(n uint16) []byte { return smgw(roleAccept, n) }, 0, StateNegotiating, false, 0},
			{"none", func(uint16) []byte { return nil }, 0, StateNone, true, ReasonPeerNoOption},
			{"mirrored", func(n uint16) []byte { return smgw(roleOffer, n) }, 0, StateNone, true, ReasonOptionMirrored},
			{"other nonce", func(n uint16) []byte { return smgw(roleAccept, n+1) }, 0, StateNone, true, ReasonPeerNoOption},
			{"other version", func(n uint16) []byte { return smgw(0x22, n) }, 0, StateNone, true, ReasonPeerNoOption},
			{"two versions", func(n uint16) []byte { return append(smgw(0x22, n+1), smgw(roleAccept, n)...) }, 0, StateNegotiating, false, 0},
			{"other role in front", func(n uint16) []byte { return append(smgw(0x14, n), smgw(roleOffer, n)...) }, 0, StateNone, true, ReasonOptionMirrored},
			// The kernel answers by a reset and its SYN again, which is bare.
			{"wrong ack", func(n uint16) []byte { return smgw(roleAccept, n) }, 7, StateReleased, false, 0},
		} {
			syn, tuple := c.answered(dst, func(syn segment, nonce uint16) segment {
				sa := syn.reply(flagSYN|flagACK, 7000, pad(timestamps(), v.option(nonce)))
				sa.ack += v.ack
				return sa
			})
			within := 500 * time.Millisecond
			if v.native {
				within = patience
			}
			require.Equal(t, v.native, c.kernelAnswers(syn, within), v.name)
			require.Equal(t, v.state, c.state(tuple), v.name)
			if v.reason != 0 {
				e := c.rec.wait(t, 30*time.Second, func(e Event) bool { return e.Tuple == tuple })
				require.Equal(t, v.reason, e.Reason, v.name)
				require.Equal(t, syn.seq, e.ISN)
				require.WithinDuration(t, time.Now(), e.At, patience)
			}
		}
	}
	// The option anywhere is found.
	for lead := range 30 {
		opts := make([]byte, lead)
		for i := range opts {
			opts[i] = 1
		}
		_, tuple := c.answered(ghost4+":6379", func(syn segment, nonce uint16) segment {
			return syn.reply(flagSYN|flagACK, 7000, pad(opts, smgw(roleAccept, nonce)))
		})
		require.Eventually(t, func() bool { return c.state(tuple) == StateNegotiating }, 30*time.Second, time.Millisecond, "%d", lead)
	}
}

// Malformed options end the walk: the connection is native.
func TestMalformedOptions(t *testing.T) {
	t.Parallel()
	c := newClient(t, config(accelerate(6379)))
	for _, broken := range [][]byte{{77, 0}, {77, 1}, {77, 60}, {0}, {254, 9, 'S', 'M', 'G', 'W', 0x12, 0, 0}} {
		syn, tuple := c.offered(ghost4 + ":6379")
		_, nonce, _ := syn.offer()
		if len(broken) > 2 {
			nonce++ // a wrong length hides nothing; the option after it is another's
		}
		c.h2.send(c.h1, syn.reply(flagSYN|flagACK, 7000, pad(broken, smgw(roleAccept, nonce))).bytes(t))
		require.True(t, c.kernelAnswered(syn))
		require.Equal(t, StateNone, c.state(tuple))
	}
}

// While the gateway negotiates, the app's retransmissions stay here; without
// heartbeat they leave. The app's kernel gets no segment of the wire leg, also then:
// the gateway may only be late, and may have spoken. Nor does the server get what the
// gateway says afterwards.
func TestRetransmissions(t *testing.T) {
	t.Parallel()
	c := newClient(t, config(accelerate(6379)))
	syn, tuple := c.answered(ghost4+":6379", accepts)
	_, nonce, _ := syn.offer()
	require.Eventually(t, func() bool { return c.state(tuple) == StateNegotiating }, 30*time.Second, time.Millisecond)
	again := func(s segment) bool { return s.src == syn.src && s.flags&flagSYN != 0 }
	require.Eventually(t, func() bool { return stat(t, c.d, "syn_retransmit_drop") > 0 }, 30*time.Second, time.Millisecond)
	_, ok := c.wire.next(300*time.Millisecond, again)
	require.False(t, ok)
	require.Equal(t, StateNegotiating, c.state(tuple))
	require.NoError(t, c.d.StopHeartbeat())
	c.h2.send(c.h1, accepts(syn, nonce).bytes(t))
	require.Eventually(t, func() bool { return stat(t, c.d, "stale_dropped") == 1 }, 30*time.Second, time.Millisecond)
	first, ok := c.wire.next(patience, func(s segment) bool { return s.src == syn.src })
	require.True(t, ok)
	require.True(t, again(first), "its next segment is its own SYN")
	require.Equal(t, StateReleased, c.state(tuple))
	require.EqualValues(t, 1, nativeCount(t, c.d, SideClient, ReasonGatewayStale))
	c.h2.send(c.h1, accepts(syn, nonce).bytes(t))
	require.Eventually(t, func() bool { return stat(t, c.d, "released_drop") == 1 }, 30*time.Second, time.Millisecond)
	ours := segment{src: syn.src, dst: syn.dst, flags: flagRST, seq: syn.seq + 1}
	writeTUN(t, c.d.WireTUN(), ours)
	require.Eventually(t, func() bool { return stat(t, c.d, "wire_ingress_drop") == 1 }, 30*time.Second, time.Millisecond)
	native := syn.reply(flagSYN|flagACK, 9000, timestamps())
	c.h2.send(c.h1, native.bytes(t))
	ack, ok := c.wire.next(patience, func(s segment) bool { return s.src == syn.src && s.flags == flagACK })
	require.True(t, ok)
	require.EqualValues(t, 9001, ack.ack)
	require.Equal(t, StateNone, c.state(tuple))
	require.Zero(t, nativeCount(t, c.d, SideClient, ReasonOptionBlackholed), "the offer was answered")
}

// A negotiation the gateway should have ended long ago is one it does not know of,
// because its queue had no room for the accept: the application's next SYN leaves.
// A gateway that does know hears of it, and a late accept changes nothing.
func TestRetransmissionOfForgottenNegotiation(t *testing.T) {
	t.Parallel()
	cfg := config(accelerate(6379))
	cfg.Handshake = 300 * time.Millisecond
	c := newClient(t, cfg)
	syn, tuple := c.answered(ghost4+":6379", accepts)
	_, nonce, _ := syn.offer()
	accept := accepts(syn, nonce).bytes(t)
	again, ok := c.wire.next(patience, func(s segment) bool { return s.src == syn.src })
	require.True(t, ok)
	require.Equal(t, syn.seq, again.seq)
	_, _, offers := again.offer()
	require.False(t, offers, "bare")
	require.Equal(t, StateReleased, c.state(tuple))
	c.rec.wait(t, 30*time.Second, replacedBy(tuple, syn.seq))
	require.Positive(t, nativeCount(t, c.d, SideClient, ReasonHandshakeTimeout), "one, or more if some were answered late")
	c.h2.send(c.h1, accept)
	require.Eventually(t, func() bool { return stat(t, c.d, "released_drop") == 1 }, 30*time.Second, time.Millisecond)
}

// CAS transitions: ISN and states are checked in one step.
func TestTransitions(t *testing.T) {
	t.Parallel()
	c := newClient(t, config(accelerate(6379)))
	syn, tuple := c.answered(ghost4+":6379", accepts) // so the kernel changes nothing by repeating it
	require.Eventually(t, func() bool { return c.state(tuple) == StateNegotiating }, patience, time.Millisecond)
	d, isn := c.d, syn.seq
	require.ErrorIs(t, d.Transition(tuple, isn+1, StateDead), ErrReplaced)
	require.ErrorIs(t, d.Delete(tuple, isn+1), ErrReplaced)
	var se *StateError
	require.ErrorAs(t, d.Transition(tuple, isn, StateCompleting, StateOffered, StateCarrying), &se)
	require.Equal(t, StateNegotiating, se.Have)
	require.ErrorIs(t, se, ErrState)
	require.NoError(t, d.Transition(tuple, isn, StateCompleting, StateNegotiating))
	f, err := d.Flow(tuple)
	require.NoError(t, err)
	require.Equal(t, isn, f.ISN)
	_, nonce, _ := syn.offer()
	require.Equal(t, nonce, f.Nonce)
	require.GreaterOrEqual(t, f.ChangedAt, f.OfferedAt)
	require.NoError(t, d.Transition(tuple, isn, StateReleased))
	require.Error(t, d.Transition(tuple, isn, StateNone))
	require.Len(t, flows(t, d), 1)
	swept, err := d.Sweep(SweepLimits{Released: time.Hour})
	require.NoError(t, err)
	require.Zero(t, swept)
	time.Sleep(2 * time.Millisecond)
	swept, err = d.Sweep(SweepLimits{Released: time.Millisecond})
	require.NoError(t, err)
	require.Equal(t, 1, swept)
	require.ErrorIs(t, d.Delete(tuple, isn), ErrNoFlow)
	require.ErrorIs(t, d.Transition(tuple, isn, StateDead), ErrNoFlow)
	require.ErrorIs(t, d.InjectApp(make([]byte, 200)), os.ErrInvalid)
	require.ErrorIs(t, d.InjectApp(make([]byte, 20)), os.ErrInvalid)
	use, err := d.MapUsage()
	require.NoError(t, err)
	require.Equal(t, "flows", use[0].Name)
	require.Zero(t, use[0].Entries)
	require.Equal(t, 1<<16, use[0].Capacity)
}

// A destination that eats the option is blackholed, with back-off; one that
// answers an offer is not.
func TestBlackhole(t *testing.T) {
	t.Parallel()
	cfg := config(accelerate(6379))
	cfg.BlackholeAfter, cfg.Retry = 2, 3*time.Second
	c := newClient(t, cfg)
	eaten := func() { // answers the bare retransmission only
		syn, _ := c.offered(ghost4 + ":6379")
		_, _, has := syn.offer()
		require.True(t, has)
		again, ok := c.wire.next(patience, func(s segment) bool { return s.src == syn.src })
		require.True(t, ok)
		c.h2.send(c.h1, again.reply(flagSYN|flagACK, 7000, pad(timestamps())).bytes(t))
		require.True(t, c.kernelAnswered(syn))
	}
	peer := func() Peer {
		peers, err := c.d.Peers()
		require.NoError(t, err)
		require.Len(t, peers, 1)
		require.Equal(t, netip.MustParseAddr(ghost4), peers[0].Addr)
		require.Equal(t, ReasonOptionBlackholed, peers[0].Reason)
		return peers[0]
	}
	eaten()
	require.Equal(t, 1, peer().Count)
	require.Zero(t, peer().TTL)
	eaten()
	p := peer()
	require.Equal(t, 2, p.Count)
	require.Positive(t, p.TTL)
	require.LessOrEqual(t, p.TTL, cfg.Retry)
	syn, _ := c.offered(ghost4 + ":6379")
	_, _, has := syn.offer()
	require.False(t, has)
	c.rec.wait(t, 30*time.Second, nativeFor(SideClient, ReasonOptionBlackholed))
	time.Sleep(p.TTL)
	eaten() // the first after it ended renews it at once, for longer
	p = peer()
	require.Greater(t, p.TTL, cfg.Retry)
	require.Equal(t, 2, p.Backoff)
	n, err := c.d.FlushPeers()
	require.NoError(t, err)
	require.Equal(t, 1, n)
	// A count is forgotten when an offer is answered at all.
	c.answered(ghost4+":6379", accepts)
	peers, err := c.d.Peers()
	require.NoError(t, err)
	require.Empty(t, peers)
}
