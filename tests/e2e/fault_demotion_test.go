package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/gateway/admin"
	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/lab/matrix"
	"github.com/smcgw/smcgw/lab/testnet"
)

// idleFlows is how many connections are idle while the others work.
const idleFlows = 8

// demotionFault makes connections leave their queue pairs while the peer lives.
type demotionFault struct {
	name string
	via  report.Carrier
	idle bool // idle connections leave theirs, too
	do   func(d *demotionTest)
	// natively is the error of connect() meanwhile, with and without a gateway.
	natively string
}

var demotionFaults = []demotionFault{
	{"operator", report.CarrierShm, true, (*demotionTest).byOperator, ""},
	{"operator", report.CarrierSoft, true, (*demotionTest).byOperator, ""},
	{"hang-up", report.CarrierShm, true, (*demotionTest).cutRendezvous, ""},
	{"udp", report.CarrierSoft, true, (*demotionTest).blockUDP, ""},
	{"address", report.CarrierSoft, false, (*demotionTest).removeAddress, "ENETUNREACH"},
}

// demotionTest is a network under load.
type demotionTest struct {
	*world
	t     *testing.T
	tally *tally
	rng   *rand.Rand
	both  []*gw
	held  []*testnet.Proc

	stop chan struct{}
	wg   sync.WaitGroup
	mu   sync.Mutex // guards errs
	errs []string
}

// TestFaultDemotion checks that, whatever demotes connections, in bulk, in small messages, half closed or idle, no
// application notices and no byte is wrong. Connections that lived through it must be carried by the relay, later
// ones by the carrier again, and nothing may be left behind.
func TestFaultDemotion(t *testing.T) {
	t.Parallel()
	for _, f := range matrix.Cells(t, demotionFaults, 2) {
		t.Run(f.name+"/"+string(f.via), func(t *testing.T) { testDemotion(t, f) })
	}
}

func testDemotion(t *testing.T, f demotionFault) {
	w := newWorld(t, testnet.Config{})
	w.via = f.via
	w.serve(w.h2)
	d := &demotionTest{world: w, t: t, tally: newTally(t), rng: matrix.Rand(t), stop: make(chan struct{})}
	d.both = []*gw{w.up(w.h1, settings{}), w.up(w.h2, settings{})}
	for range idleFlows / 4 {
		d.hold(w.h2.AddrPort4(echoPort).String())
		d.hold(w.h2.AddrPort6(echoPort).String())
	}
	d.load(f.natively)
	time.Sleep(500 * time.Millisecond)
	f.do(d)
	time.Sleep(500 * time.Millisecond)
	close(d.stop)
	d.wg.Wait()
	require.Empty(t, d.errs)
	d.askHeld()
	for _, g := range d.both {
		relayed := 0
		for _, c := range g.conns() {
			if c.Demoted != "" {
				require.Equal(t, report.CarrierRelay, c.Carrier, "%+v", c)
				relayed++
			}
		}
		if f.idle {
			require.Equal(t, idleFlows, relayed, "the idle ones live on: %s", g.dump())
		}
	}

	w.flush()
	for _, to := range []string{w.h2.AddrPort4(transferPort).String(), w.h2.AddrPort6(transferPort).String()} {
		e := w.mustApp(w.h1, "transfer", "-up", "300000", "-down", "300000", "-to", to)
		d.tally.result(e)
		w.carriedBy(e, f.via)
	}
	for _, p := range d.held {
		require.NoError(t, p.CloseInput())
		d.tally.result(result(t, p))
	}
	for _, g := range d.both {
		d.nothingHeld(g)
	}
	require.Zero(t, d.tally.failed())
}

// hold opens idle connections.
func (d *demotionTest) hold(to string) {
	p, err := d.h1.StartApp("hold", "-count", "2", "-patience", "60s", "-to", to)
	require.NoError(d.t, err)
	d.held = append(d.held, p)
	require.Empty(d.t, d.ask(p))
}

// ask makes the connections of a program send and receive something, and returns what went wrong.
func (d *demotionTest) ask(p *testnet.Proc) string {
	ctx, cancel := context.WithTimeout(d.t.Context(), time.Minute)
	defer cancel()
	e, err := p.Ask(ctx, "ping")
	if err == nil && e.Failed == 0 {
		return ""
	}
	return fmt.Sprintf("idle connections: %v\n%s", err, p.Output())
}

func (d *demotionTest) askHeld() {
	d.t.Helper()
	wrong := make([]string, len(d.held))
	var wg sync.WaitGroup
	for i, p := range d.held {
		wg.Go(func() { wrong[i] = d.ask(p) })
	}
	wg.Wait()
	require.Empty(d.t, strings.Join(wrong, ""))
}

// load runs applications until stop is closed. A failure that would also happen natively proves nothing about gateways.
func (d *demotionTest) load(natively string) {
	for i := range 6 {
		seed := d.rng.Uint64()
		d.wg.Go(func() {
			rng := rand.New(rand.NewPCG(seed, uint64(i)))
			for {
				select {
				case <-d.stop:
					return
				default:
				}
				e, err := d.app(d.h1, 2*time.Minute, d.job(i, rng)...)
				if natively != "" && e.Errno == natively && len(e.Errnos) <= 1 {
					continue
				}
				d.tally.result(e)
				if err != nil || e.Failed > 0 {
					d.mu.Lock()
					d.errs = append(d.errs, fmt.Sprintf("%v: %+v", err, e))
					d.mu.Unlock()
				}
			}
		})
	}
}

// job returns what worker i does next.
func (d *demotionTest) job(i int, rng *rand.Rand) []string {
	addr := func(port uint16) string {
		if rng.IntN(2) == 0 {
			return d.h2.AddrPort4(port).String()
		}
		return d.h2.AddrPort6(port).String()
	}
	number := func(most int) string { return strconv.Itoa(rng.IntN(most)) }
	switch i {
	case 0:
		return []string{"churn", "-count", "60", "-parallel", "6", "-size", "60000", "-to", addr(transferPort)}
	case 1:
		return []string{"ping", "-count", "400", "-gap", "2ms", "-size", "300", "-to", addr(echoPort)}
	case 2: // half closed most of the time
		return []string{"transfer", "-late", "-up", number(100_000), "-down", number(150_000_000), "-to", addr(transferPort)}
	default:
		return []string{"transfer", "-up", number(80_000_000), "-down", number(80_000_000), "-seed", strconv.FormatUint(rng.Uint64N(1<<40), 10), "-to", addr(transferPort)}
	}
}

// byOperator demotes all connections repeatedly, on either side.
func (d *demotionTest) byOperator() {
	for range 12 {
		var res admin.Result
		d.both[d.rng.IntN(2)].cliJSON(&res, "demote", "--all")
		d.tally.faults(int64(res.Count))
		time.Sleep(time.Duration(d.rng.IntN(300)) * time.Millisecond)
	}
}

// cutRendezvous ends the rendezvous connections of shared memory, as an accident would: both daemons live, and new
// flows make new ones.
func (d *demotionTest) cutRendezvous() {
	total := 0
	for range 3 {
		total += d.cutSeqpackets(d.both[d.rng.IntN(2)].daemon())
		time.Sleep(time.Second)
	}
	require.Positive(d.t, total, "no rendezvous connection")
	d.tally.faults(int64(total))
}

// cutSeqpackets shuts down the rendezvous connections of a daemon, through duplicates of its sockets, and returns how
// many there were. An accepted socket is in the table of its peer's namespace.
func (d *demotionTest) cutSeqpackets(pid int) (n int) {
	t := d.t
	t.Helper()
	connected := map[string]bool{}
	for _, g := range d.both {
		table, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/unix", g.daemon()))
		require.NoError(t, err)
		for line := range strings.Lines(string(table)) {
			if f := strings.Fields(line); len(f) >= 7 && f[4] == "0005" && f[5] == "03" {
				connected["socket:["+f[6]+"]"] = true
			}
		}
	}
	process, err := unix.PidfdOpen(pid, 0)
	require.NoError(t, err)
	defer unix.Close(process)
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	for _, e := range entries {
		if link, _ := os.Readlink(filepath.Join(dir, e.Name())); !connected[link] {
			continue
		}
		number, err := strconv.Atoi(e.Name())
		require.NoError(t, err)
		fd, err := unix.PidfdGetfd(process, number, 0)
		if err != nil {
			continue // closed meanwhile
		}
		if from, err := unix.Getpeername(fd); err == nil && rendezvous(fd, from) {
			require.NoError(t, unix.Shutdown(fd, unix.SHUT_RDWR))
			n++
		}
		_ = unix.Close(fd)
	}
	return n
}

// rendezvous tells the connection of two devices from that of daemon and guardian, which is an unnamed pair.
func rendezvous(fd int, peer unix.Sockaddr) bool {
	own, _ := unix.Getsockname(fd)
	return slices.ContainsFunc([]unix.Sockaddr{peer, own}, func(a unix.Sockaddr) bool {
		u, ok := a.(*unix.SockaddrUnix)
		return ok && strings.HasSuffix(u.Name, ".sock")
	})
}

// blockUDP makes the network lose all RoCEv2 packets for a while.
func (d *demotionTest) blockUDP() {
	require.NoError(d.t, d.net.SetBox(testnet.Box{UDP: testnet.Datagrams{Port: rdmaPort, Loss: 1000}}))
	start := time.Now()
	d.askHeld() // so that idle ones have something to send
	time.Sleep(5*time.Second - time.Since(start))
	require.NoError(d.t, d.net.SetBox(testnet.Box{}))
	d.tally.faults(1)
}

// removeAddress removes the addresses of a host's device and adds them again.
func (d *demotionTest) removeAddress() {
	d.tally.faults(1)
	ip := func(args ...string) string {
		out, err := d.h1.Run(d.t.Context(), "ip", args...)
		require.NoError(d.t, err, out)
		return out
	}
	var back [][]string
	for _, family := range []string{"-4", "-6"} {
		addrs, routes := ip(family, "-o", "addr", "show", "dev", "eth0", "scope", "global"), ip(family, "route", "show")
		for line := range strings.Lines(addrs) {
			prefix := strings.Fields(line)[3]
			ip(family, "addr", "del", prefix, "dev", "eth0")
			add := []string{family, "addr", "add", prefix, "dev", "eth0"}
			if family == "-6" {
				add = append(add, "nodad")
			}
			back = append(back, add)
		}
		for line := range strings.Lines(routes) {
			if f := strings.Fields(line); !slices.Contains(f, "kernel") {
				back = append(back, append([]string{family, "route", "replace"}, f...))
			}
		}
	}
	time.Sleep(5 * time.Second)
	for _, cmd := range back {
		ip(cmd...)
	}
	d.askHeld()
}

// nothingHeld waits until a gateway holds no memory for connections.
func (d *demotionTest) nothingHeld(g *gw) {
	d.t.Helper()
	var s report.Status
	quarantined := 0.0
	require.Eventually(d.t, func() bool {
		s = g.status()
		quarantined = g.metrics(d.t)[`smcgw_registered_memory_bytes{kind="quarantined"}`]
		flows := 0
		for _, n := range s.Flows {
			flows += n
		}
		return flows == 0 && s.Memory.UsedBytes == 0 && quarantined == 0
	}, 30*time.Second, 100*time.Millisecond, "%+v, %v quarantined", &s, &quarantined)
	n := 0.0
	for name, v := range g.metrics(d.t) {
		if strings.HasPrefix(name, "smcgw_demotions_total") {
			n += v
		}
	}
	require.Positive(d.t, n, "demotions are counted")
	d.t.Logf("%s: %d demotions", g.h.Name, int(n))
}
