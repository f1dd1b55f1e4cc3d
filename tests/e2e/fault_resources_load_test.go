package e2e

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/lab/apps"
	"github.com/smcgw/smcgw/lab/matrix"
	"github.com/smcgw/smcgw/lab/testnet"
)

// faultQueues shortens the queues to the gateways and stops the gateways for 100 ms repeatedly while bulk and many
// new connections pass. TCP must recover whatever is dropped, and the drops must be counted.
func faultQueues(t *testing.T, c *tally) {
	rng := matrix.Rand(t)
	w := newServed(t)
	// SYNs that a queue drops look like those that a box drops.
	gs := []*gw{w.up(w.h1, settings{NegativeCache: "200ms"}), w.up(w.h2, settings{NegativeCache: "200ms"})}
	done := w.watchLeaks(t)
	w.setQueues(t, 4)
	pids := []int{gs[0].daemon(), gs[1].daemon()}
	stop := make(chan struct{})
	var stopping sync.WaitGroup
	stopping.Go(func() {
		for {
			pid := pids[rng.IntN(2)]
			_ = syscall.Kill(pid, syscall.SIGSTOP)
			time.Sleep(100 * time.Millisecond)
			_ = syscall.Kill(pid, syscall.SIGCONT)
			c.faults(1)
			select {
			case <-stop:
				return
			case <-time.After(150 * time.Millisecond):
			}
		}
	})
	var load sync.WaitGroup
	for _, to := range []string{w.h2.AddrPort4(transferPort).String(), w.h2.AddrPort6(transferPort).String()} {
		load.Go(func() {
			e, err := w.app(w.h1, 2*time.Minute, "transfer", "-up", "67108864", "-down", "67108864", "-limit", "100s", "-to", to)
			c.tried(t, e, err, 1)
		})
		load.Go(func() {
			e, err := w.app(w.h1, 2*time.Minute, "churn", "-count", "600", "-parallel", "30", "-size", "30000", "-limit", "100s", "-to", to)
			c.tried(t, e, err, 600)
		})
	}
	load.Wait()
	close(stop)
	stopping.Wait()
	dropped := 0.0
	for _, g := range gs {
		dropped += g.metrics(t)[`smcgw_datapath_events_total{event="wire_queue_drop"}`]
	}
	t.Logf("%.0f packets dropped", dropped)
	w.setQueues(t, 4096)
	require.Positive(t, dropped, "the queues were full")
	w.flush()
	w.carriedAgain(t, c, 20)
	done()
}

// setQueues sets how many packets may wait for each gateway's wire TCP.
func (w *world) setQueues(t *testing.T, n int) {
	t.Helper()
	for h := range w.gateways {
		links, err := h.Links()
		require.NoError(t, err)
		for _, l := range links {
			if strings.HasPrefix(l, "smcgw-w") {
				_, err := h.Run(t.Context(), "ip", "link", "set", l, "txqueuelen", itoa(n))
				require.NoError(t, err)
			}
		}
	}
}

// faultSlowReaders has many applications not read what others write until no more is taken. The memory for them must
// be bounded, others must go on, and when they finally read every byte must be there.
func faultSlowReaders(t *testing.T, c *tally) {
	n := 100
	if matrix.Whole() {
		n = 2000
	}
	w := newServed(t)
	s := ownSettings()
	s.Memory, s.NegativeCache = "128MiB", "1s"
	gs := []*gw{w.up(w.h1, s), w.up(w.h2, s)}
	done := w.watchLeaks(t)
	ln, err := w.h2.Listen("tcp", w.h2.AddrPort4(ownPort).String())
	require.NoError(t, err)
	defer ln.Close()
	pairs := make([]*pair, n)
	for i := range pairs {
		if pairs[i], err = dialPair(w.h1, ln, w.h2.AddrPort4(ownPort)); err != nil {
			c.add(1, 0, 1)
			t.Fatalf("connection %d: %v", i, err)
		}
		defer pairs[i].close()
	}
	carried := gs[0].status().Flows[w.via]
	wrote := make([]int, n)
	var all sync.WaitGroup
	for i, p := range pairs {
		all.Go(func() { wrote[i], _ = fillUp(p.c) })
	}
	all.Wait()
	c.faults(int64(n))
	for _, g := range gs {
		m := g.status().Memory
		require.LessOrEqual(t, m.UsedBytes, m.LimitBytes)
	}
	e, err := w.app(w.h1, 2*time.Minute, "churn", "-count", "200", "-parallel", "10", "-size", "30000",
		"-limit", "60s", "-to", w.h2.AddrPort4(transferPort).String())
	c.tried(t, e, err, 200)
	for i, p := range pairs {
		all.Go(func() {
			_ = p.c.SetDeadline(time.Now().Add(socketPatience))
			_ = p.s.SetDeadline(time.Now().Add(socketPatience))
			_ = p.c.CloseWrite()
			if got, want := receive(p.s), fmt.Sprintf("%d bytes, EOF", wrote[i]); got != want {
				c.add(1, int64(wrote[i]), 1)
				t.Errorf("connection %d: %s instead of %s", i, got, want)
				return
			}
			c.add(1, int64(wrote[i]), 0)
		})
	}
	all.Wait()
	t.Logf("%d that do not read, %d of them carried", n, carried)
	require.Positive(t, carried)
	for _, p := range pairs {
		p.close()
	}
	w.quiet(t)
	w.flush()
	w.carriedAgain(t, c, 20)
	done()
}

// fillUp writes the pattern until nothing is taken for half a second.
func fillUp(c *net.TCPConn) (n int, err error) {
	buf := make([]byte, 64<<10)
	for err == nil && n < 64<<20 {
		pattern(buf, n)
		_ = c.SetWriteDeadline(time.Now().Add(500 * time.Millisecond))
		var m int
		m, err = c.Write(buf)
		n += m
	}
	return n, err
}

func faultAtOnce(t *testing.T, c *tally) { atOnce(t, c, 2000) }

func faultAtOnceWhole(t *testing.T, c *tally) { atOnce(t, c, 20000) }

// atOncePorts are the ports of atOnce. Each has a server process and a client process of its own, since a process may
// have fewer descriptors than there are connections.
var atOncePorts = []uint16{transferPort, firstPort, rstPort, closePort}

// atOnce begins n connections at the same moment, first with gateways and then natively, which shows what the machine
// can do.
func atOnce(t *testing.T, c *tally, n int) {
	w := newWorld(t, testnet.Config{})
	for _, h := range []*testnet.Host{w.h2, w.h3} {
		for _, port := range atOncePorts {
			_, err := h.StartApp("serve", "-quiet", fmt.Sprintf("transfer=[::]:%d", port))
			require.NoError(t, err)
		}
	}
	w.upBoth(settings{NegativeCache: "1s"})
	done := w.watchLeaks(t)
	before := w.gateways[w.h1].status()
	e, took := w.burst(t, w.h2, n) // first: the first time everything is slower
	c.tried(t, e, nil, n)
	s := w.gateways[w.h1].status()
	native, nativeTook := w.burst(t, w.h3, n)
	t.Logf("%d at once: natively %d errors in %.1f s; with gateways %d errors in %.1f s, %d carried, %d relayed, native by %v",
		n, native.Failed, nativeTook.Seconds(), e.Failed, took.Seconds(), s.FlowsTotal[w.via]-before.FlowsTotal[w.via],
		s.FlowsTotal["relay"]-before.FlowsTotal["relay"], more(before.FallbacksTotal, s.FallbacksTotal))
	if e.Failed > 0 {
		for h, g := range w.gateways {
			t.Logf("%s: %v\nended: %v", h.Name, g.counters(t), g.endings(t))
		}
	}
	require.Zero(t, native.Failed, "%+v", native)
	c.faults(1)
	w.flush()
	w.carriedAgain(t, c, 20)
	done()
}

// endings counts how the last connections of a gateway ended, and why.
func (g *gw) endings(t *testing.T) map[string]int {
	t.Helper()
	count := map[string]int{}
	for _, conn := range g.conns("--all") {
		count[fmt.Sprintf("%s %s %s by %s", conn.End, conn.Carrier, conn.Reason, conn.DecidedBy)]++
	}
	return count
}

// burst makes n connections to a host at the same moment.
func (w *world) burst(t *testing.T, to *testnet.Host, n int) (total apps.Event, took time.Duration) {
	t.Helper()
	var mu sync.Mutex
	var all sync.WaitGroup
	begun := time.Now()
	each := itoa(n / len(atOncePorts))
	for _, port := range atOncePorts {
		all.Go(func() {
			e, err := w.app(w.h1, 5*time.Minute, "churn", "-count", each, "-parallel", each, "-size", "4096",
				"-limit", "150s", "-to", to.AddrPort4(port).String())
			mu.Lock()
			defer mu.Unlock()
			total.OK, total.Failed = total.OK+e.OK, total.Failed+e.Failed
			total.Sent, total.Received = total.Sent+e.Sent, total.Received+e.Received
			if err != nil || e.Failed > 0 {
				t.Errorf("%s: %v %+v", to.Name, err, e)
			}
		})
	}
	all.Wait()
	return total, time.Since(begun)
}

// more returns by how much counters have grown.
func more(before, now map[string]uint64) map[string]uint64 {
	grown := map[string]uint64{}
	for name, n := range now {
		if n > before[name] {
			grown[name] = n - before[name]
		}
	}
	return grown
}

const (
	// rateServers is how many addresses a server has in faultRate: a client has 64512 ports for each.
	rateServers = 16
	// rateSeconds is how long the rate is measured with and without gateways.
	rateSeconds = 60
)

// faultRate makes as many new connections as two hosts manage, for a minute natively and for a minute with gateways,
// alternately.
func faultRate(t *testing.T, c *tally) {
	w := newWorld(t, testnet.Config{})
	servers := map[*testnet.Host][]string{}
	for i, h := range []*testnet.Host{w.h2, w.h3} {
		for k := range rateServers {
			a := netip.AddrFrom4([4]byte{10, 77, 0, byte(100 + i*rateServers + k)})
			require.NoError(t, h.AddAddress(netip.PrefixFrom(a, 24)))
			servers[h] = append(servers[h], netip.AddrPortFrom(a, echoPort).String())
		}
		_, err := h.StartApp("serve", "-quiet", fmt.Sprintf("echo=[::]:%d", echoPort), fmt.Sprintf("transfer=[::]:%d", transferPort))
		require.NoError(t, err)
	}
	w.upBoth(settings{NegativeCache: "1s", Handshake: quick})
	require.NoError(t, w.h1.SetSysctl("net.ipv4.ip_local_port_range", "1024 65535"))
	require.NoError(t, w.h1.SetSysctl("net.ipv4.tcp_tw_reuse", "1"))

	type sum struct {
		conns, failed int
		seconds       float64
	}
	slice := func(h *testnet.Host, each int) (s sum) {
		var mu sync.Mutex
		var all sync.WaitGroup
		begun := time.Now()
		for _, to := range servers[h] {
			all.Go(func() {
				e, err := w.app(w.h1, 2*time.Minute, "short", "-count", itoa(each), "-parallel", "8", "-limit", "60s", "-to", to)
				mu.Lock()
				defer mu.Unlock()
				s.conns += e.OK
				s.failed += e.Failed
				if err != nil || e.Failed > 0 {
					s.failed = max(s.failed, 1)
					t.Errorf("%s: %v %+v", h.Name, err, e)
				}
			})
		}
		all.Wait()
		s.seconds = time.Since(begun).Seconds()
		return s
	}
	slice(w.h2, 40) // each address is a peer, whose memory and doorbells stay
	done := w.watchLeaks(t)
	totals := map[*testnet.Host]*sum{w.h2: {}, w.h3: {}}
	each := map[*testnet.Host]int{w.h2: 500, w.h3: 500}
	before := w.gateways[w.h1].status()
	for totals[w.h3].seconds < rateSeconds || totals[w.h2].seconds < rateSeconds {
		for _, h := range []*testnet.Host{w.h3, w.h2} {
			s := slice(h, each[h])
			require.NotZero(t, s.conns, "%s", h.Name)
			total := totals[h]
			total.conns, total.failed, total.seconds = total.conns+s.conns, total.failed+s.failed, total.seconds+s.seconds
			each[h] = max(200, int(float64(s.conns)/s.seconds*4)/rateServers) // as many as fit in four seconds
		}
	}
	native, with := totals[w.h3], totals[w.h2]
	c.add(int64(with.conns+with.failed), int64(with.conns)*128, int64(with.failed))
	c.faults(1)
	s := w.gateways[w.h1].status()
	t.Logf("natively %d connections in %.0f s, %.0f/s, %d errors; with gateways %d in %.0f s, %.0f/s, %d errors, %d carried, native by %v",
		native.conns, native.seconds, float64(native.conns)/native.seconds, native.failed,
		with.conns, with.seconds, float64(with.conns)/with.seconds, with.failed,
		s.FlowsTotal[w.via]-before.FlowsTotal[w.via], more(before.FallbacksTotal, s.FallbacksTotal))
	require.LessOrEqual(t, with.failed, native.failed)
	w.flush()
	w.carriedAgain(t, c, 20)
	done()
}
