package ebpf

import (
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// newDoubtful is a client that blames a path after two offers without an answer.
func newDoubtful(t *testing.T) *client {
	cfg := config(accelerate(6379))
	cfg.BlackholeAfter, cfg.Retry = 2, time.Hour
	return newClient(t, cfg)
}

// unanswered has the offered SYN get lost; the bare one is answered.
func (c *client) unanswered(to string) {
	c.t.Helper()
	d := c.dial(to)
	require.True(c.t, d.offers())
	bare := d.next(patience)
	d.answer(bare.reply(flagSYN|flagACK, 7000, pad(timestamps())).bytes(c.t))
	require.NoError(c.t, d.ends())
}

// late has the offered SYN answered after the bare one was sent: by its host, or by the
// way back, or by this host, which was late to take the answer in.
func (c *client) late(to string) {
	c.t.Helper()
	d := c.dial(to)
	require.True(c.t, d.offers())
	d.next(patience)
	d.answer(d.syn.reply(flagSYN|flagACK, 7000, pad(echoOf(c.t, d.syn))).bytes(c.t))
	require.NoError(c.t, d.ends())
}

// echoOf is the timestamps option that answers a segment.
func echoOf(t *testing.T, s segment) []byte {
	for o := s.options; len(o) > 0; {
		switch o[0] {
		case 1:
			o = o[1:]
		case 8:
			return append([]byte{8, 10, 0, 0, 0, 1}, o[2:6]...)
		default:
			o = o[o[1]:]
		}
	}
	require.Fail(t, "no timestamps")
	return nil
}

// plain has the offered SYN answered by a host without gateway.
func (c *client) plain(to string) {
	c.t.Helper()
	d := c.dial(to)
	require.True(c.t, d.offers())
	d.answer(d.syn.reply(flagSYN|flagACK, 7000, pad(echoOf(c.t, d.syn))).bytes(c.t)) // which is told from one to a later SYN
	require.NoError(c.t, d.ends())
}

// A host that has answered offers and then does not is late, not behind a box: it
// rests for seconds, however long a box would be left alone, and the path is not
// blamed before that has lasted.
func TestUnanswered(t *testing.T) {
	t.Parallel()
	c := newDoubtful(t)
	host, to := netip.MustParseAddr(ghost4), ghost4+":6379"
	c.plain(to)
	_, ok := c.known(host, 0)
	require.False(t, ok)
	c.unanswered(to)
	c.unanswered(to)
	p, ok := c.known(host, 0)
	require.True(t, ok)
	require.Equal(t, ReasonOfferUnanswered, p.Reason)
	require.Positive(t, p.TTL)
	require.LessOrEqual(t, p.TTL, 5*time.Second)
	require.EqualValues(t, 2, nativeCount(t, c.d, SideClient, ReasonOfferUnanswered))
	require.Zero(t, nativeCount(t, c.d, SideClient, ReasonOptionBlackholed))
	require.False(t, c.dial(to).offers())
	time.Sleep(p.TTL + 10*time.Millisecond)
	c.plain(to) // answers again: the row is over
	_, ok = c.known(host, 0)
	require.False(t, ok)
	c.unanswered(to)
	p, ok = c.known(host, 0)
	require.True(t, ok)
	require.Equal(t, 1, p.Count)
}

// An answer to the offered SYN shows that the option passes, however late it comes: the
// time is our own as well as the peer's. It ends what doubt there is.
func TestLateAnswer(t *testing.T) {
	t.Parallel()
	c := newDoubtful(t)
	host, to := netip.MustParseAddr(ghost4), ghost4+":6379"
	c.late(to)
	c.late(to)
	_, ok := c.known(host, 0)
	require.False(t, ok)
	require.Zero(t, nativeCount(t, c.d, SideClient, ReasonOptionBlackholed))
	require.Zero(t, nativeCount(t, c.d, SideClient, ReasonOfferUnanswered))
	require.EqualValues(t, 2, nativeCount(t, c.d, SideClient, ReasonPeerNoOption))
	c.unanswered(to)
	_, ok = c.known(host, 0)
	require.True(t, ok)
	c.late(to)
	_, ok = c.known(host, 0)
	require.False(t, ok)
}

// Connections that began together are one event: they rest once.
func TestUnansweredTogether(t *testing.T) {
	t.Parallel()
	c := newDoubtful(t)
	to := ghost4 + ":6379"
	c.plain(to)
	var all []*dialled
	waits := map[netip.AddrPort]bool{}
	for range 10 {
		d := c.dial(to)
		all = append(all, d)
		waits[d.tuple.Local] = true
	}
	for len(waits) > 0 {
		bare, ok := c.wire.next(patience, isSYN(6379))
		require.True(t, ok)
		c.h2.send(c.h1, bare.reply(flagSYN|flagACK, 7000, pad(timestamps())).bytes(t))
		delete(waits, bare.src)
	}
	for _, d := range all {
		require.NoError(t, d.ends())
	}
	p, ok := c.known(netip.MustParseAddr(ghost4), 0)
	require.True(t, ok)
	require.Equal(t, 1, p.Backoff)
	require.LessOrEqual(t, p.TTL, 5*time.Second)
}

// A host that goes on not answering is behind a box by now, and rests ever longer.
func TestUnansweredForLong(t *testing.T) {
	t.Parallel()
	cfg := config(accelerate(6379))
	cfg.BlackholeAfter, cfg.Retry = 1, 20*time.Millisecond // bounds each rest
	c := newClient(t, cfg)
	host, to := netip.MustParseAddr(ghost4), ghost4+":6379"
	c.plain(to)
	for i, want := range []uint8{
		ReasonOfferUnanswered, ReasonOfferUnanswered, ReasonOfferUnanswered, ReasonOfferUnanswered, ReasonOfferUnanswered,
		ReasonOptionBlackholed,
	} {
		c.unanswered(to)
		require.EqualValues(t, 1+i%5, nativeCount(t, c.d, SideClient, want), "%d", i)
		require.Eventually(t, func() bool { p, ok := c.known(host, 0); return ok && p.TTL == 0 }, patience, time.Millisecond)
	}
}

// A gateway that dies may leave the SYN of an application on its way to a listener
// that is gone. It stays without an answer: the kernel does not send the reset of
// a server that was never asked, and no program of the client's own host that
// listens on the same port accepts it. When the programs have left, the
// application's own retransmission finds the server.
func TestListenerGone(t *testing.T) {
	t.Parallel()
	requireRoot(t)
	for _, v := range []struct{ name, network, addr string }{
		{"v4", "tcp4", "10.77.0.2"}, {"v6", "tcp6", "fd77::2"},
	} {
		for _, local := range []bool{false, true} {
			t.Run(v.name+map[bool]string{false: "", true: " same port here"}[local], func(t *testing.T) {
				listenerGone(t, v.network, net.JoinHostPort(v.addr, "6379"), local)
			})
		}
	}
}

func listenerGone(t *testing.T, network, target string, local bool) {
	h1, h2 := newPair(t)
	h2.echo("6379")
	if local {
		h1.echo("6379")
	}
	d1, d2 := h1.open(config(accelerate(6379))), h2.open(config(accelerate(6379)))
	ln := h1.listen(d1, network)
	app := h1.connectAsync(target)
	f, _, back := met(t, d1, d2)
	require.NoError(t, d1.Transition(f.Tuple, f.ISN, StateCompleting, StateNegotiating))
	require.NoError(t, ln.Close())
	require.NoError(t, d1.InjectApp(f.SYN))
	select {
	case a := <-app:
		require.Fail(t, "somebody answered", "%+v", a)
	case <-time.After(300 * time.Millisecond):
	}
	require.NoError(t, d2.Delete(back, f.ISN, StateWire))
	require.NoError(t, d1.Close())
	a := <-app
	require.NoError(t, a.err)
	exchange(t, a.c)
	require.NoError(t, a.c.Close())
}
