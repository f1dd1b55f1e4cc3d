package e2e

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/admin"
	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/lab/matrix"
	"github.com/smcgw/smcgw/lab/testnet"
)

// configCell says on which host the configuration changes, and what carries.
type configCell struct {
	host string
	via  report.Carrier
}

// TestFaultConfig checks that reloads of any kind and the kill switch, repeated under load, cost no application an
// error: existing connections go on, and new ones follow the configuration in force. Only off --now resets
// connections, at once.
func TestFaultConfig(t *testing.T) {
	t.Parallel()
	var cells []configCell
	for _, host := range []string{"h1", "h2"} {
		cells = append(cells, configCell{host, report.CarrierShm}, configCell{host, report.CarrierSoft})
	}
	total := newTally(t)
	for _, c := range matrix.Cells(t, cells, 1) {
		t.Run(c.host+"/"+strings.TrimPrefix(string(c.via), "rdma-"), func(t *testing.T) { testFaultConfig(t, c, total) })
	}
}

// The port whose policy changes, and one whose does not.
const (
	changingPort = ownPort + 20
	loadPort     = ownPort + 21
)

// configVariants are configurations that follow each other. expect is what a new connection to changingPort becomes,
// as reported by the host whose configuration changes: "carried", or the reason why it is native.
var configVariants = []struct {
	name   string
	edit   func(*settings)
	refuse bool
	expect string // empty: the same as before
}{
	{"carry", func(*settings) {}, false, "carried"},
	{"no rule", func(s *settings) { s.without(changingPort) }, false, "policy"},
	{"not YAML", func(s *settings) { s.Extra = "{{" }, true, ""},
	{"carry", func(*settings) {}, false, "carried"},
	{"observe", func(s *settings) { s.Mode = "observe" }, false, "mode"},
	{"carry, other limits", func(s *settings) { s.MaxFlows, s.Handshake = 500, "1s" }, false, "carried"},
	{"unknown field", func(s *settings) { s.Extra = "carrots: [shm]\n" }, true, ""},
	{"takes a restart", func(s *settings) { s.Memory = "512MiB" }, true, ""},
	{"pass before", func(s *settings) {
		s.Policy = fmt.Sprintf("  - { name: first, match: { ports: [%d] }, action: pass }\n", changingPort)
	}, false, "policy"},
}

// without takes a port out of the policy.
func (s *settings) without(port uint16) {
	s.Ports = strings.ReplaceAll(s.Ports, fmt.Sprintf(", %d", port), "")
}

func testFaultConfig(t *testing.T, c configCell, total *tally) {
	w := newWorld(t, testnet.Config{})
	w.via = c.via
	s := ownSettings().with(c.via)
	w.upDetached(w.h1, s)
	w.upDetached(w.h2, s)
	g := w.gateways[w.net.Host(c.host)]
	f := &faultWorld{world: w, tally: total, c: processCell{host: c.host, via: c.via}, host: g.h, g: g, admins: map[*testnet.Host]*admin.Client{}}
	for h, g := range w.gateways {
		f.admins[h] = g.client()
	}
	log := &logTail{path: g.log}

	carried := f.carry(t)
	echo := f.echoAt(t, changingPort)
	load := f.newLoad(t, loadPort, 4)
	reloads := 36
	if matrix.Whole() {
		reloads = 108
	}
	expect := "carried"
	for i := range reloads {
		v := configVariants[i%len(configVariants)]
		next := s
		v.edit(&next)
		f.rewrite(t, next)
		g.signal(g.proc.Pid(), syscall.SIGHUP)
		want := "configuration in force"
		if v.refuse {
			want = "configuration refused"
		}
		log.await(t, want)
		total.faults(1)
		if v.expect != "" {
			expect = v.expect
		}
		f.follows(t, echo, expect, v.name)
	}
	f.rewrite(t, s)
	g.signal(g.proc.Pid(), syscall.SIGHUP)
	log.await(t, "configuration in force")
	for range 5 {
		f.throw(t, "off")
		f.follows(t, echo, "off", "off")
		f.throw(t, "on")
		f.follows(t, echo, "carried", "on")
	}
	load.stop(t)
	for _, c := range carried {
		require.True(t, c.alive(), "%s", c.name)
	}
	f.hit = time.Now()
	f.throw(t, "off", "--now")
	for _, c := range carried {
		for _, e := range c.over(t, 3*slack) {
			require.Contains(t, []string{"ECONNRESET", "EPIPE"}, e.how, "%s of %s", e.side, c.name)
			require.Less(t, e.at.Sub(f.hit), slack, "%s of %s", e.side, c.name)
		}
		total.add(1, c.bytes.Load(), 0)
	}
	f.follows(t, echo, "off", "off --now")
	f.throw(t, "on")
	f.follows(t, echo, "carried", "on again")
	for _, g := range w.gateways {
		g.signal(g.proc.Pid(), syscall.SIGTERM)
		g.exited(t, 0)
	}
}

// rewrite replaces the configuration of the gateway.
func (f *faultWorld) rewrite(t *testing.T, s settings) {
	t.Helper()
	f.write(f.g, s)
}

// throw switches the gateway off or on.
func (f *faultWorld) throw(t *testing.T, args ...string) {
	t.Helper()
	f.g.says(args...)
	f.tally.faults(1)
}

// follows makes connections, which must work, until one becomes what is expected. If it must be carried, more than
// one may be needed: earlier connections can still learn that the other gateway refuses. One that finds a gateway late says
// nothing.
func (f *faultWorld) follows(t *testing.T, to netip.AddrPort, expect, behind string) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); ; {
		for _, a := range f.admins {
			_, err := a.FlushPeers(t.Context())
			require.NoError(t, err)
		}
		is := f.becomes(t, to, behind)
		switch {
		case expect == "carried" && is == string(f.via):
			return
		case (expect == "carried" || is == gatewayStale) && time.Now().Before(end):
			continue
		case expect != "carried" && is == "": // the programs do not report each decision separately
			return
		}
		require.Equal(t, expect, is, behind)
		return
	}
}

// becomes makes a connection and returns what carries it, or why nothing does.
func (f *faultWorld) becomes(t *testing.T, to netip.AddrPort, behind string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), socketPatience)
	defer cancel()
	begun := time.Now()
	conn, err := f.h1.Dial(ctx, "tcp", to.String())
	require.NoError(t, err, behind)
	_ = conn.SetDeadline(time.Now().Add(socketPatience))
	require.NoError(t, ask(conn, 20_000), behind)
	f.tally.add(1, 40_000, 0)
	own := conn.LocalAddr().(*net.TCPAddr).AddrPort()
	list, err := f.admins[f.host].Conns(t.Context(), report.ConnQuery{All: true})
	require.NoError(t, err)
	require.NoError(t, conn.Close())
	return describe(list, own, begun)
}

// describe says how the connection from a client's address that began at a time is carried, or why it is not. Earlier
// connections had the same port.
func describe(list admin.ConnList, client netip.AddrPort, begun time.Time) string {
	for _, c := range list.Conns {
		began := time.Now()
		if !c.EndedAt.IsZero() {
			began = c.EndedAt
		}
		began = began.Add(-time.Duration(c.AgeSeconds * float64(time.Second)))
		if c.Local != client && c.Remote != client || began.Before(begun.Add(-5*time.Millisecond)) {
			continue
		}
		if c.Carrier != report.CarrierNone {
			return string(c.Carrier)
		}
		return c.Reason
	}
	return ""
}

// echoAt starts an echo server.
func (f *faultWorld) echoAt(t *testing.T, port uint16) netip.AddrPort {
	t.Helper()
	ln, err := f.h2.Listen("tcp", f.h2.AddrPort4(port).String())
	require.NoError(t, err)
	t.Cleanup(func() { _ = ln.Close() })
	go func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			go func() {
				_ = echoLoop(conn.(*net.TCPConn))
				_ = conn.Close()
			}()
		}
	}()
	return f.h2.AddrPort4(port)
}

// connLoad makes one connection after another and moves some bytes both ways on each.
type connLoad struct {
	f     *faultWorld
	over  atomic.Bool
	wg    sync.WaitGroup
	conns atomic.Int64
	errs  atomic.Pointer[error]
}

func (f *faultWorld) newLoad(t *testing.T, port uint16, parallel int) *connLoad {
	t.Helper()
	to := f.echoAt(t, port)
	l := &connLoad{f: f}
	t.Cleanup(func() { // before its server ends
		l.over.Store(true)
		l.wg.Wait()
	})
	for range parallel {
		l.wg.Go(func() {
			for !l.over.Load() {
				if err := l.once(to); err != nil {
					l.errs.CompareAndSwap(nil, &err)
					f.tally.add(0, 0, 1)
				}
				l.conns.Add(1)
				time.Sleep(2 * time.Millisecond)
			}
		})
	}
	return l
}

const loadBytes = 30_000

func (l *connLoad) once(to netip.AddrPort) error {
	ctx, cancel := context.WithTimeout(context.Background(), socketPatience)
	defer cancel()
	conn, err := l.f.h1.Dial(ctx, "tcp", to.String())
	if err != nil {
		return err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(socketPatience))
	return ask(conn, loadBytes)
}

// stop ends the load and checks that none of it failed.
func (l *connLoad) stop(t *testing.T) {
	t.Helper()
	l.over.Store(true)
	l.wg.Wait()
	l.f.tally.add(l.conns.Load(), 2*loadBytes*l.conns.Load(), 0)
	if err := l.errs.Load(); err != nil {
		t.Errorf("of %d connections one failed first: %v", l.conns.Load(), *err)
	}
	require.Greater(t, l.conns.Load(), int64(20))
}

// logTail reads a growing log.
type logTail struct {
	path string
	at   int64
}

// await waits for a line that contains text, after the last one that it found.
func (l *logTail) await(t *testing.T, text string) {
	t.Helper()
	require.Eventually(t, func() bool {
		f, err := os.Open(l.path)
		if err != nil {
			return false
		}
		defer f.Close()
		b := make([]byte, 8<<20)
		n, _ := f.ReadAt(b, l.at)
		i := bytes.Index(b[:n], []byte(text))
		if i < 0 {
			return false
		}
		l.at += int64(i + len(text))
		return true
	}, 30*time.Second, 2*time.Millisecond, "%s", text)
}
