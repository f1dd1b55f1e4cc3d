package e2e

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/lab/testnet"
)

// upDetached starts a gateway that logs to a file, since its daemon outlives its guardian, and with it the test's
// pipes.
func (w *world) upDetached(h *testnet.Host, s settings) *gw {
	w.t.Helper()
	g := w.configure(h, s)
	g.detached(s.Env)
	require.Eventually(w.t, func() bool {
		_, err := g.client().Status(w.t.Context())
		return err == nil
	}, 30*time.Second, 20*time.Millisecond)
	time.Sleep(150 * time.Millisecond) // the programs must have seen a beat
	return g
}

// detached starts the process of a gateway with a file for its log.
func (g *gw) detached(env []string, args ...string) {
	w := g.w
	w.t.Helper()
	log, err := os.CreateTemp(w.dir, g.h.Name+".*.log") // the predecessor may itself be a successor
	require.NoError(w.t, err)
	defer log.Close()
	g.log = log.Name()
	cmd := g.h.Command(context.Background(), w.current(env), append([]string{"up", "-c", g.config}, args...)...)
	cmd.Stdout, cmd.Stderr, cmd.Env = log, log, append(os.Environ(), env...)
	g.proc, err = g.h.StartCmd(cmd)
	require.NoError(w.t, err)
	w.t.Cleanup(func() {
		if w.t.Failed() {
			b, _ := os.ReadFile(g.log)
			w.t.Logf("gateway of %s, %v:\n%s", g.h.Name, args, tail(string(b), 12000))
		}
	})
}

// current returns the smcgw for a gateway with that environment: the one with fault knobs unless it is empty.
func (w *world) current(env []string) string {
	w.t.Helper()
	if w.program != "" {
		return w.program
	}
	if len(env) == 0 {
		return binary
	}
	file, err := faulty()
	require.NoError(w.t, err)
	return file
}

// footprint is what a running gateway leaves on a host.
type footprint struct{ links, rules, routes, programs []string }

// bare returns the footprint of a host that has no gateway yet. The kernel adds the routes of IPv6 addresses a little
// after the addresses.
func (w *world) bare(h *testnet.Host) (f footprint) {
	w.t.Helper()
	require.Eventually(w.t, func() bool {
		f = w.footprint(h)
		own := func(route string) bool { return strings.HasPrefix(route, "local "+h.Addr6.String()+" ") }
		near := func(route string) bool { return strings.HasPrefix(route, "local fe80:") }
		return slices.ContainsFunc(f.routes, own) && slices.ContainsFunc(f.routes, near)
	}, 10*time.Second, 10*time.Millisecond, "%s has its routes", h.Name)
	return f
}

func (w *world) footprint(h *testnet.Host) (f footprint) {
	w.t.Helper()
	var err error
	f.links, err = h.Links()
	require.NoError(w.t, err)
	f.rules, err = h.Rules()
	require.NoError(w.t, err)
	ctx, cancel := context.WithTimeout(w.t.Context(), 10*time.Second)
	defer cancel()
	for _, family := range []string{"-4", "-6"} {
		out, err := h.Run(ctx, "ip", family, "route", "show", "table", "all")
		require.NoError(w.t, err)
		for line := range strings.Lines(out) {
			f.routes = append(f.routes, strings.Join(strings.Fields(line), " "))
		}
	}
	out, err := h.Run(ctx, "bpftool", "net")
	require.NoError(w.t, err)
	for line := range strings.Lines(out) {
		if strings.Contains(line, "smcgw") {
			f.programs = append(f.programs, strings.TrimSpace(line))
		}
	}
	for _, list := range []*[]string{&f.links, &f.rules, &f.routes, &f.programs} {
		slices.Sort(*list)
	}
	return f
}

// ended is when and how one end of a connection ended.
type ended struct {
	at   time.Time
	how  string
	side string
}

// watched is a set of connections between two hosts whose ends are watched.
type watched struct {
	name  string
	bytes atomic.Int64 // compared by askOn and readOn
	all   sync.WaitGroup
	mu    sync.Mutex // guards everything below
	ends  []ended
	conns []net.Conn
}

func (w *world) at(h *testnet.Host, v6 bool, port uint16) netip.AddrPort {
	if v6 {
		return h.AddrPort6(port)
	}
	return h.AddrPort4(port)
}

// watch runs one end until it ends.
func (c *watched) watch(side string, conn *net.TCPConn, loop func(*net.TCPConn) error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.conns = append(c.conns, conn)
	c.all.Go(func() {
		err := loop(conn)
		c.mu.Lock()
		defer c.mu.Unlock()
		c.ends = append(c.ends, ended{at: time.Now(), how: errno(err), side: side})
	})
}

func echoLoop(conn *net.TCPConn) error {
	buf := make([]byte, 16<<10)
	for {
		n, err := conn.Read(buf)
		if err != nil {
			return err
		}
		if _, err := conn.Write(buf[:n]); err != nil {
			return err
		}
	}
}

// askOn sends requests until told to stop.
func (c *watched) askOn(conn *net.TCPConn) error {
	for {
		if err := ask(conn, 8<<10); err != nil {
			return err
		}
		c.bytes.Add(16 << 10)
		time.Sleep(time.Millisecond)
	}
}

func waitLoop(conn *net.TCPConn) error {
	_, err := conn.Read(make([]byte, 1))
	return err
}

// over waits until every end has ended and returns how.
func (c *watched) over(t *testing.T, patience time.Duration) []ended {
	t.Helper()
	for end := time.Now().Add(patience); c.still() > 0; time.Sleep(10 * time.Millisecond) {
		require.True(t, time.Now().Before(end), "%s goes on: of %d ends only these have ended: %s", c.name, len(c.conns), c.told())
	}
	c.close()
	return c.ends
}

// still returns how many ends have not ended.
func (c *watched) still() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.conns) - len(c.ends)
}

func (c *watched) alive() bool { return c.still() == len(c.conns) }

// told returns how the ends that are over have ended.
func (c *watched) told() (all []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, e := range c.ends {
		all = append(all, fmt.Sprintf("%s of the %s at %s", e.how, e.side, e.at.Format(time.StampMilli)))
	}
	return all
}

func (c *watched) close() {
	for _, conn := range c.conns {
		_ = conn.Close()
	}
	c.all.Wait()
}

// attempt is one connect().
type attempt struct {
	begun time.Time
	took  time.Duration
	err   error
}

// callers is how many attempts are under way at once.
const callers = 6

// caller connects repeatedly, over both families.
type caller struct {
	stop     chan struct{}
	calling  sync.WaitGroup
	serving  sync.WaitGroup
	mu       sync.Mutex
	attempts []attempt
	lns      []net.Listener
}

func (w *world) newCaller(t *testing.T, port uint16) *caller {
	t.Helper()
	c := &caller{stop: make(chan struct{})}
	for _, v6 := range []bool{false, true} {
		to := w.at(w.h2, v6, port)
		ln, err := w.h2.Listen("tcp", to.String())
		require.NoError(t, err)
		c.lns = append(c.lns, ln)
		c.serving.Go(func() { hangUp(ln) })
		for range callers / 2 {
			c.calling.Go(func() { c.call(w.h1, to) })
		}
	}
	return c
}

// hangUp accepts connections and closes each when its client has.
func hangUp(ln net.Listener) {
	var all sync.WaitGroup
	defer all.Wait()
	for {
		conn, err := ln.Accept()
		if err != nil {
			return
		}
		all.Go(func() {
			_ = conn.SetDeadline(time.Now().Add(socketPatience))
			_ = waitLoop(conn.(*net.TCPConn))
			_ = conn.Close()
		})
	}
}

func (c *caller) call(h *testnet.Host, to netip.AddrPort) {
	for {
		select {
		case <-c.stop:
			return
		case <-time.After(5 * time.Millisecond):
		}
		ctx, cancel := context.WithTimeout(context.Background(), socketPatience)
		begun := time.Now()
		conn, err := h.Dial(ctx, "tcp", to.String())
		took := time.Since(begun)
		cancel()
		if err == nil {
			_ = conn.Close()
		}
		c.mu.Lock()
		c.attempts = append(c.attempts, attempt{begun, took, err})
		c.mu.Unlock()
	}
}

// since counts the attempts that began after a time and have ended.
func (c *caller) since(at time.Time) (n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, a := range c.attempts {
		if a.begun.After(at) {
			n++
		}
	}
	return n
}

// end stops calling and returns all attempts. Servers stay until those under way have ended, however long they take.
func (c *caller) end() []attempt {
	close(c.stop)
	c.calling.Wait()
	for _, ln := range c.lns {
		_ = ln.Close()
	}
	c.serving.Wait()
	return c.attempts
}
