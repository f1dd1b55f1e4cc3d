package ebpf

import (
	"io"
	"math"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/lab/leak"
)

// countingConfig is that of a datapath that counts.
func countingConfig(rules []Rule) Config {
	cfg := config(rules)
	cfg.Counting, cfg.Mode = true, ModeObserve
	return cfg
}

// openCounting opens one that needs no legs.
func (h *host) openCounting(cfg Config) *Datapath {
	h.t.Helper()
	var d *Datapath
	var err error
	h.do(func() { d, err = Open(cfg) })
	require.NoError(h.t, err)
	h.t.Cleanup(func() { require.NoError(h.t, d.Close()) })
	return d
}

// seenSum collects what a datapath has seen until it is enough.
type seenSum map[Seen]Seen

func (s seenSum) take(t require.TestingT, d *Datapath) {
	list, err := d.TakeSeen()
	require.NoError(t, err)
	for _, v := range list {
		k := Seen{Side: v.Side, Host: v.Host, Port: v.Port, Rule: v.Rule, Past: v.Past, Carries: v.Carries}
		n := s[k]
		n.Begun, n.Ended, n.Sent, n.Received = n.Begun+v.Begun, n.Ended+v.Ended, n.Sent+v.Sent, n.Received+v.Received
		n.Bulk, n.BulkBytes, n.BulkLasted = n.Bulk+v.Bulk, n.BulkBytes+v.BulkBytes, n.BulkLasted+v.BulkLasted
		s[k] = n
	}
}

// A datapath that counts leaves the namespace as it was, in the mode off without a link of
// its own, and a failed one too.
func TestCountingTouchesNothing(t *testing.T) {
	h1, _ := newPair(t)
	before, fds := h1.attachments(), len(leak.OpenFiles())
	for _, mode := range []Mode{ModeObserve, ModeOff} {
		cfg := countingConfig(accelerate(6379))
		cfg.Mode = mode
		var d *Datapath
		var err error
		h1.do(func() { d, err = Open(cfg) })
		require.NoError(t, err)
		h1.attached(t, before)
		require.Equal(t, map[Mode]int{ModeObserve: 3, ModeOff: 0}[mode], ourLinks(t))
		require.NoError(t, d.SetMode(ModeOff))
		require.Zero(t, ourLinks(t))
		require.NoError(t, d.SetMode(ModeObserve))
		require.Equal(t, 3, ourLinks(t))
		require.Error(t, d.SetMode(ModeEnforce))
		h1.attached(t, before)
		require.NoError(t, d.Close())
		require.Zero(t, ourLinks(t))
	}
	require.Equal(t, fds, len(leak.OpenFiles()))
}

// Both ends count a connection by its service, host and rule, and what it moved.
func TestCounting(t *testing.T) {
	t.Parallel()
	h1, h2 := newPair(t)
	rules := []Rule{
		{Ports: []uint16{9000}, Action: ActionAccelerate, Direction: DirectionClient},
		{Ports: []uint16{9000}, Action: ActionAccelerate},
		{Ports: []uint16{9001}, Action: ActionPass},
	}
	d1, d2 := h1.openCounting(countingConfig(rules)), h2.openCounting(countingConfig(rules))
	a1, a2 := netip.MustParseAddr("10.77.0.1"), netip.MustParseAddr("10.77.0.2")
	h2.echo("9000")
	h2.echo("9001")
	const small, bulk = 1000, 2 << 20
	for _, n := range []int{small, bulk} {
		echoed(t, h1, "10.77.0.2:9000", n)
	}
	echoed(t, h1, "10.77.0.2:9001", small)
	echoed(t, h1, "[fd77::2]:9000", small)
	require.NoError(t, h2.dial("10.77.0.2:9000", patience), "to itself")

	client, server := Seen{Side: SideClient, Host: a2, Port: 9000, Rule: 0, Carries: true}, Seen{Side: SideServer, Host: a1, Port: 9000, Rule: 1, Carries: true}
	one, two := seenSum{}, seenSum{}
	require.Eventually(t, func() bool {
		one.take(t, d1)
		two.take(t, d2)
		return one[client].Ended == 2 && two[server].Ended == 2
	}, 30*time.Second, 20*time.Millisecond, "%v\n%v", one, two)
	for _, v := range []Seen{one[client], two[server]} {
		require.EqualValues(t, 2, v.Begun)
		require.InDelta(t, small+bulk, v.Sent, 4)
		require.InDelta(t, small+bulk, v.Received, 4)
		require.EqualValues(t, 1, v.Bulk)
		require.InDelta(t, 2*bulk, v.BulkBytes, 4)
		require.Positive(t, v.BulkLasted)
	}
	pass := client
	pass.Port, pass.Rule, pass.Carries = 9001, 2, false
	require.EqualValues(t, 1, one[pass].Begun)
	six := client
	six.Host = netip.MustParseAddr("fd77::2")
	require.EqualValues(t, 1, one[six].Begun)
	require.Len(t, one, 3)
	require.Len(t, two, 3, "the host itself is no other host")
	require.EqualValues(t, 3, nativeCount(t, d1, SideClient, ReasonMode))
	require.EqualValues(t, 3, nativeCount(t, d2, SideServer, ReasonMode))
	require.EqualValues(t, 1, nativeCount(t, d1, SideClient, ReasonPolicy))

	c, err := h1.connect("10.77.0.2:9000", patience)
	require.NoError(t, err)
	require.NoError(t, d1.SetPolicy(rules[2:]))
	require.NoError(t, c.Close())
	past := client
	past.Past = true
	require.Eventually(t, func() bool {
		one.take(t, d1)
		return one[past].Ended == 1
	}, 30*time.Second, 20*time.Millisecond)
}

// echoed has n bytes echoed, and ends the connection from the client's side.
func echoed(t *testing.T, h *host, to string, n int) {
	t.Helper()
	c, err := h.connect(to, patience)
	require.NoError(t, err)
	defer func() { _ = c.Close() }()
	require.NoError(t, c.SetDeadline(time.Now().Add(30*time.Second)))
	go func() {
		_, _ = c.Write(make([]byte, n))
		_ = c.(*net.TCPConn).CloseWrite()
	}()
	got, err := io.Copy(io.Discard, c)
	require.NoError(t, err)
	require.EqualValues(t, n, got)
}

// The share of the rollout is that of the places, and follows it.
func TestRollout(t *testing.T) {
	t.Parallel()
	h1, h2 := newPair(t)
	h2.echo("9000")
	d := h1.openCounting(countingConfig([]Rule{{Action: ActionAccelerate}}))
	rec := record(t, d)
	for _, percent := range []float64{0, 30, 100} {
		r := Rollout{Share: ShareOf(percent)}
		require.NoError(t, d.SetRollout(r))
		inside, wants := 0, map[netip.AddrPort]uint8{}
		for range 60 {
			c, err := h1.connect("10.77.0.2:9000", patience)
			require.NoError(t, err)
			local := addrPort(c.LocalAddr().String())
			remote := addrPort(c.RemoteAddr().String())
			require.NoError(t, c.Close())
			q := Query{Peer: remote.Addr(), Port: 9000, Local: local, Remote: remote}
			want := ReasonMode
			if v := d.Decide(q); v.Action == ActionPass {
				require.Equal(t, ReasonCanary, v.Reason)
				require.Zero(t, v.Rule)
				want = ReasonCanary
			} else {
				inside++
			}
			wants[local] = want
			q.Local, q.Remote = q.Remote, q.Local
			require.Equal(t, want == ReasonCanary, d.Decide(q).Reason == ReasonCanary, "the other end")
		}
		for local, want := range wants {
			e := rec.wait(t, 30*time.Second, func(e Event) bool { return e.Tuple.Local == local })
			require.Equal(t, want, e.Reason)
		}
		switch percent {
		case 0:
			require.Zero(t, inside)
		case 100:
			require.Equal(t, 60, inside)
		default:
			require.InDelta(t, 18, inside, 15)
		}
	}
}

// take adds up what has ended, by all but how long it took.
func (c comparedSum) take(t *testing.T, d *Datapath) {
	t.Helper()
	list, err := d.TakeCompared()
	require.NoError(t, err)
	for _, v := range list {
		lasted := time.Duration(math.Exp2(float64(v.Lasted)/4) * float64(time.Microsecond))
		require.Greater(t, lasted, 10*time.Microsecond)
		require.Less(t, lasted, time.Minute)
		c[Compared{Rule: v.Rule, Past: v.Past, Offered: v.Offered, Size: v.Size}] += v.Count
	}
}

type comparedSum map[Compared]uint64

// ended waits until n connections have ended.
func (c comparedSum) ended(t *testing.T, d *Datapath, n uint64) {
	t.Helper()
	require.Eventually(t, func() bool {
		c.take(t, d)
		all := uint64(0)
		for _, v := range c {
			all += v
		}
		return all == n
	}, 30*time.Second, 20*time.Millisecond, "%v", c)
}

// TestCompared: connections inside and outside of the share are told apart, by rule and
// size, from connect() to their end. What cannot be offered is not compared.
func TestCompared(t *testing.T) {
	t.Parallel()
	h1, h2 := newPair(t)
	for _, port := range []string{"9000", "9001", "9002"} {
		h2.echo(port)
	}
	cfg := config([]Rule{{Ports: []uint16{9001}}, {Ports: []uint16{9000}, Action: ActionAccelerate}, {Ports: []uint16{9002}, Action: ActionNotWorthIt}})
	cfg.Rollout = Rollout{Share: ShareOf(50)}
	d := h1.open(cfg)
	const conns, small, bulk = 40, 1000, 2 << 20
	run := func(port string, n int) {
		for range conns {
			echoed(t, h1, "10.77.0.2:"+port, n)
		}
	}
	sum := comparedSum{}
	run("9000", small)
	sum.ended(t, d, 0)

	require.NoError(t, d.SetCompare(true))
	run("9000", small)
	run("9000", bulk)
	run("9001", small)
	sum.ended(t, d, 2*conns)
	for _, size := range []uint8{1, 4} { // below 16 KiB both ways, and above 4 MiB with SYN and FIN
		in, out := sum[Compared{Rule: 1, Offered: true, Size: size}], sum[Compared{Rule: 1, Size: size}]
		require.EqualValues(t, conns, in+out, "%v", sum)
		require.InDelta(t, conns/2, in, conns/2-2)
	}

	// The peer is known to be none, or the rule leaves everything native: nothing is compared
	// that the share leaves native, since inside it would be native, too.
	require.NoError(t, d.Remember(netip.MustParseAddr("10.77.0.2"), 9000, ReasonOptionBlackholed, time.Hour))
	clear(sum)
	run("9000", small)
	run("9002", small)
	sum.ended(t, d, 0)
	require.NoError(t, d.Forget(netip.MustParseAddr("10.77.0.2"), 9000))
	require.NoError(t, d.SetCompare(false))
	run("9000", small)
	sum.ended(t, d, 0)

	require.NoError(t, d.SetCompare(true))
	c, err := h1.connect("10.77.0.2:9000", patience)
	require.NoError(t, err)
	require.NoError(t, d.SetPolicy(cfg.Policy[:2]))
	require.NoError(t, c.Close())
	sum.ended(t, d, 1)
	for k := range sum {
		require.True(t, k.Past)
	}
}
