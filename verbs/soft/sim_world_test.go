package soft

import (
	"net/netip"
	"os"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/verbs"
)

// simTB is what the simulator needs of *testing.T, *testing.F or *rapid.T.
type simTB interface {
	require.TestingT
	Helper()
	Logf(format string, args ...any)
	Fatalf(format string, args ...any)
	Cleanup(f func())
}

// simWorld is devices on a network with the loops that drive them, all in the
// goroutine of the test.
//
// With SIM_TRACE=1 in the environment every packet is logged.
type simWorld struct {
	t     simTB
	net   *simNet
	nodes []*simNode
	turns int
	limit int // of turns
}

// simNode is a device and one event loop per vector.
type simNode struct {
	world  *simWorld
	addr   netip.Addr // the first one
	dev    *Device
	loops  []*simLoop
	paused time.Duration // until then the process does not run
	// slack is how late the loops wake up for timers, as epoll with its
	// milliseconds does.
	slack time.Duration
}

// simLoop is the event loop of a vector.
type simLoop struct {
	node   *simNode
	vector int
	driver verbs.Driver
	link   *simLink
	next   time.Duration // when Progress wants to be called; 0: when something arrives
	again  bool          // the last turn found work
	kicks  int           // see simNet
	// turn is the program: it polls, posts, and tells whether it did anything.
	turn []func() bool
}

// simTurnLimit bounds a run: several times what the longest test takes. A run
// that needs more polls instead of waiting.
const simTurnLimit = 10_000_000

func newSimWorld(t simTB, seed uint64) *simWorld {
	w := &simWorld{t: t, net: newSimNet(seed), limit: simTurnLimit}
	w.net.strict = true
	if os.Getenv("SIM_TRACE") != "" {
		w.net.trace = t.Logf
	}
	return w
}

// open adds a device; change may alter its configuration.
func (w *simWorld) open(addr string, change ...func(*Config)) *simNode {
	w.t.Helper()
	cfg := Config{
		Name: addr, Addrs: []netip.Addr{netip.MustParseAddr(addr)}, MTU: verbs.MTU4096,
		newLink: w.net.newLink,
	}
	for _, f := range change {
		f(&cfg)
	}
	dev, err := Open(cfg)
	require.NoError(w.t, err)
	node := &simNode{world: w, addr: cfg.Addrs[0], dev: dev}
	for v := range dev.Attr().Vectors {
		driver, err := dev.Drive(v, simPoller{})
		require.NoError(w.t, err)
		node.loops = append(node.loops, &simLoop{node: node, vector: v, driver: driver, link: w.net.links[simSocket(node)][v]})
	}
	w.nodes = append(w.nodes, node)
	w.t.Cleanup(node.close)
	return node
}

func (n *simNode) close() {
	for _, l := range n.loops {
		require.NoError(n.world.t, l.driver.Close())
	}
	require.NoError(n.world.t, n.dev.Close())
}

// end makes what one end of a connection needs on a vector: a queue pair in INIT, its completion queue, and a region.
func (n *simNode) end(vector, size int, access verbs.Access, limits verbs.QPCap) (q *qp, cq verbs.CQ, mr verbs.MR) {
	t := n.world.t
	pd, err := n.dev.AllocPD()
	require.NoError(t, err)
	cq, err = n.dev.CreateCQ(verbs.CQAttr{Depth: limits.MaxSendWR + limits.MaxRecvWR + 8, Vector: vector})
	require.NoError(t, err)
	mr, err = pd.AllocMR(size, access)
	require.NoError(t, err)
	p, err := pd.CreateQP(&verbs.QPInitAttr{SendCQ: cq, RecvCQ: cq, Type: verbs.QPTRC, SQSigAll: true, Cap: limits})
	require.NoError(t, err)
	require.NoError(t, verbs.Init(p, access))
	t.Cleanup(func() {
		require.NoError(t, p.Close())
		require.NoError(t, cq.Close())
		require.NoError(t, mr.Close())
		require.NoError(t, pd.Close())
	})
	return p.(*qp), cq, mr
}

// simPoller is the poller of a loop that looks at its devices always.
type simPoller struct{}

func (simPoller) Add(int) error    { return nil }
func (simPoller) Remove(int) error { return nil }

// run drives everything until cond holds, which is true, or until limit has
// passed or nothing will ever happen again.
func (w *simWorld) run(limit time.Duration, cond func() bool) bool {
	end := w.net.now + limit
	w.net.kicks++
	for {
		w.settle()
		if cond != nil && cond() {
			return true
		}
		next, ok := w.next()
		if !ok || next > end {
			w.net.now = end
			return cond != nil && cond()
		}
		w.net.now = next
	}
}

// must is run for what has to happen.
func (w *simWorld) must(limit time.Duration, what string, cond func() bool) {
	w.t.Helper()
	if !w.run(limit, cond) {
		w.t.Fatalf("not within %v of virtual time: %s (now %v, %+v)", limit, what, w.net.now, w.net.stats)
	}
}

// settle does what can be done without time passing.
func (w *simWorld) settle() {
	for round := 0; ; round++ {
		worked := w.arrivals()
		for _, n := range w.nodes {
			if n.paused > w.net.now {
				continue
			}
			for _, l := range n.loops {
				if l.due() {
					worked = l.once() || worked
				}
			}
		}
		if !worked {
			return
		}
		if round > 100_000 {
			w.t.Fatalf("no end of work at %v", w.net.now)
		}
	}
}

// arrivals runs the events that are due.
func (w *simWorld) arrivals() bool {
	any := false
	for {
		at, ok := w.net.events.Next()
		if !ok || at > w.net.now {
			return any
		}
		w.net.events.Pop()()
		any = true
	}
}

// next is when anything happens next.
func (w *simWorld) next() (time.Duration, bool) {
	at, ok := w.net.events.Next()
	consider := func(t time.Duration) {
		if !ok || t < at {
			at, ok = t, true
		}
	}
	for _, n := range w.nodes {
		if n.paused > w.net.now {
			consider(n.paused)
			continue
		}
		for _, l := range n.loops {
			if l.next != 0 {
				// Time that a loop asks for although it is past still takes time.
				consider(max(l.next, w.net.now+time.Microsecond))
			}
		}
	}
	return at, ok
}

// due tells whether the loop would have woken up.
func (l *simLoop) due() bool {
	net := l.node.world.net
	return l.again || len(l.link.inbox) > 0 || l.kicks != net.kicks || l.next != 0 && l.next <= net.now ||
		l.driver.(*driver).v.strayed.Load()
}

// once is one turn of the loop.
func (l *simLoop) once() bool {
	w := l.node.world
	if w.turns++; w.turns > w.limit {
		w.t.Fatalf("%d turns until %v: somebody polls instead of waiting", w.turns, w.net.now)
	}
	l.kicks = w.net.kicks
	worked, next := l.driver.Progress(w.net.time())
	for _, f := range l.turn {
		worked = f() || worked
	}
	l.driver.Flush()
	l.next = 0
	if !next.IsZero() {
		l.next = max(next.Sub(simEpoch), 1) + w.net.upTo(l.node.slack)
	}
	l.again = worked
	return worked
}

// simSocket is where a device receives.
func simSocket(n *simNode) netip.AddrPort { return netip.AddrPortFrom(n.addr, verbs.RoCEUDPPort) }
