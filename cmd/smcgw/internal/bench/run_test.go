package bench

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"math"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/admin"
	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/internal/comparison"
	"github.com/smcgw/smcgw/lab/leak"
)

// serveHere serves on loopback until the test ends.
func serveHere(t *testing.T, g Gateway) (netip.AddrPort, Token) {
	t.Helper()
	ln, err := net.Listen("tcp4", "127.0.0.1:0")
	require.NoError(t, err)
	return serveOn(t, ln, g)
}

func serveOn(t *testing.T, ln net.Listener, g Gateway) (netip.AddrPort, Token) {
	t.Helper()
	token := NewToken()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- Serve(ctx, ln, ServeOptions{Token: token, Gateway: g}) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-done)
	})
	return ln.Addr().(*net.TCPAddr).AddrPort(), token
}

func series(t *testing.T, r *comparison.Report, work, variant string) comparison.Series {
	t.Helper()
	for _, s := range r.Series {
		if s.Work == work && s.Variant == variant {
			return s
		}
	}
	t.Fatalf("no series %q %q", work, variant)
	return comparison.Series{}
}

func TestRunWithoutGateways(t *testing.T) {
	to, token := serveHere(t, nil)
	r, err := Run(t.Context(), Options{To: to, Token: token, Duration: 20 * time.Millisecond, Rounds: 2, Command: "smcgw bench --peer x"})
	require.NoError(t, err)
	require.Contains(t, r.Notes, "no gateway on the serving host")
	require.Equal(t, []string{"smcgw bench --peer x"}, r.Commands)
	for _, task := range tasks {
		for _, res := range task.results {
			s := series(t, r, res.Name, comparison.TCP)
			require.Equal(t, task.plain, s.Note)
			if task.plain != "" {
				require.Empty(t, s.Values, res.Name)
				continue
			}
			require.Equal(t, 2, s.Spread().N, res.Name)
			if !strings.Contains(res.Name, "processor") { // measured in hundredths of a second
				require.Positive(t, s.Spread().Min, res.Name)
			}
			s = series(t, r, res.Name, "shm")
			require.Empty(t, s.Values)
			require.Equal(t, "no gateway on this host", s.Note)
		}
	}
	require.NoError(t, r.Text(io.Discard))
}

// TestRunAsksTheGateways: both hold a trial while it lasts, a carrier that does
// not carry is not measured, and one that stops to carry loses its value.
func TestRunAsksTheGateways(t *testing.T) {
	serving := &fakeGateway{pid: os.Getpid()}
	ln, err := net.Listen("tcp4", "127.0.0.1:0")
	require.NoError(t, err)
	g := &fakeGateway{pid: os.Getpid(), devices: []report.DeviceInfo{
		{Kind: report.DeviceShm, Carrier: report.CarrierShm, State: report.DeviceActive},
		{Kind: report.DeviceSoft, Carrier: report.CarrierSoft, State: report.DeviceActive},
		{Kind: report.DeviceSoft, Carrier: report.CarrierSoft, State: report.DeviceDown},
		{Kind: report.DeviceHW, Carrier: report.CarrierHW, State: report.DeviceAbsent, Error: "not here"},
	}}
	book := &recorder{Listener: ln, g: g}
	g.conns = book.conns
	to, token := serveOn(t, book, serving)
	r, err := Run(t.Context(), Options{To: to, Token: token, Duration: 10 * time.Millisecond, Rounds: 1, Gateway: g})
	require.NoError(t, err)
	require.NotContains(t, r.Notes, "no gateway on the serving host")
	const up = "upload, 1 stream"
	require.Equal(t, 1, series(t, r, up, comparison.TCP).Spread().N)
	require.Equal(t, 1, series(t, r, up, "shm").Spread().N)
	require.Equal(t, "fallback: carrier_unreachable", series(t, r, up, "soft").Note)
	require.Empty(t, series(t, r, up, "soft").Values)
	require.Equal(t, "device absent: not here", series(t, r, up, "hw").Note)

	require.Equal(t, config.Trial{Peer: to.Addr(), Port: to.Port(), Action: report.ActionPass}, g.tried[0])
	require.Contains(t, g.tried, config.Trial{Peer: to.Addr(), Port: to.Port(), Action: report.ActionAccelerate, Carrier: report.CarrierShm, Way: report.WaySteered})
	require.Nil(t, g.trial)
	require.Equal(t, []config.Trial{{Peer: to.Addr(), Port: to.Port(), Action: report.ActionAccelerate}}, serving.tried)
	require.Eventually(t, func() bool {
		serving.mu.Lock()
		defer serving.mu.Unlock()
		return serving.trial == nil
	}, 30*time.Second, time.Millisecond)

	book.mu.Lock()
	book.asked, book.limit = 0, 11 // five probes, then three works two ways
	book.mu.Unlock()
	r, err = Run(t.Context(), Options{To: to, Token: token, Duration: 10 * time.Millisecond, Rounds: 1, Gateway: g})
	require.NoError(t, err)
	s := series(t, r, "connect, request, close", "shm")
	require.Zero(t, s.Spread().N)
	require.True(t, math.IsNaN(s.Values[0]))
	require.Contains(t, s.Note, "fallback: rate_limit")
	require.Equal(t, 1, strings.Count(strings.Join(r.Notes, "\n"), "raise limits.new_flows_per_second"), "%q", r.Notes)
}

// TestExplain: a reason is explained once, and what it means between hosts where it has another meaning there.
func TestExplain(t *testing.T) {
	c := runner{rep: &comparison.Report{}}
	for range 2 {
		c.explain(&variant{way: report.WayInProcess}, "no_peer")
		c.explain(&variant{way: report.WaySteered}, "mode")
		c.explain(&variant{way: report.WaySteered}, unseen)
		c.explain(&variant{}, "")
	}
	require.Len(t, c.rep.Notes, 2)
	require.Contains(t, c.rep.Notes[0], "in_process.between_hosts")
	require.Contains(t, c.rep.Notes[1], "mode: ")
}

// recorder keeps the book of the fake gateway: it sees connections arrive. shm
// carries under a trial that wants it, soft never.
type recorder struct {
	net.Listener
	g *fakeGateway

	mu    sync.Mutex
	book  []report.ConnInfo
	asked int // how often
	limit int // from so many questions on nothing is carried; 0: always
}

// Accept implements net.Listener.
func (r *recorder) Accept() (net.Conn, error) {
	c, err := r.Listener.Accept()
	if err != nil {
		return nil, err
	}
	local, remote, err := ends(c)
	if err != nil {
		return nil, err
	}
	r.g.mu.Lock()
	trial := r.g.trial
	r.g.mu.Unlock()
	r.mu.Lock()
	defer r.mu.Unlock()
	info := report.ConnInfo{
		ID: uint64(len(r.book)), Proto: "tcp", Local: remote, Remote: local, Reason: "policy", EndedAt: time.Now(),
	}
	switch {
	case trial == nil || trial.Action == report.ActionPass:
	case trial.Carrier == report.CarrierSoft:
		info.Carrier, info.Reason = report.CarrierRelay, "carrier_unreachable"
	case r.limit > 0 && r.asked >= r.limit:
		info.Reason = "rate_limit"
	default:
		info.Carrier, info.Reason = trial.Carrier, ""
	}
	r.book = append(r.book, info)
	return c, nil
}

func (r *recorder) conns(q report.ConnQuery) []report.ConnInfo {
	if !q.Closed {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.asked++
	return append([]report.ConnInfo(nil), r.book...)
}

// TestServerRenewsItsTrial: a daemon that was restarted knows of none.
func TestServerRenewsItsTrial(t *testing.T) {
	g := &fakeGateway{pid: os.Getpid()}
	to, token := serveHere(t, g)
	s, err := open(t.Context(), to, token)
	require.NoError(t, err)
	defer s.close()
	g.mu.Lock()
	require.Len(t, g.tried, 1)
	held := g.held
	g.mu.Unlock()
	held.Close()
	_, err = s.sample()
	require.NoError(t, err)
	_, err = s.sample()
	require.NoError(t, err)
	g.mu.Lock()
	require.Len(t, g.tried, 2)
	require.NotNil(t, g.trial)
	g.mu.Unlock()
}

func TestRunErrors(t *testing.T) {
	to, token := serveHere(t, nil)
	for want, o := range map[string]Options{
		"no address": {Token: token},
		"duration":   {To: to, Token: token, Duration: time.Hour},
		"rounds":     {To: to, Token: token, Rounds: -1},
		"idle":       {To: to, Token: token, Idle: maxIdle + 1},
		"refused":    {To: to, Token: NewToken()},
	} {
		_, err := Run(t.Context(), o)
		require.ErrorContains(t, err, want)
	}
	_, err := Run(t.Context(), Options{To: to, Token: token, Gateway: &fakeGateway{tryErr: admin.ErrForbidden}})
	require.ErrorIs(t, err, os.ErrPermission)
	require.ErrorContains(t, err, "root and its own user")

	ctx, cancel := context.WithCancel(t.Context())
	inTheMiddle := writerFunc(func([]byte) { time.AfterFunc(50*time.Millisecond, cancel) })
	r, err := Run(ctx, Options{To: to, Token: token, Duration: time.Minute, Log: inTheMiddle})
	require.ErrorIs(t, err, context.Canceled)
	require.NotNil(t, r)
}

// writerFunc calls a function with what is written.
type writerFunc func([]byte)

func (w writerFunc) Write(b []byte) (int, error) {
	w(b)
	return len(b), nil
}

// TestServerRefuses: a client without a session is not served, one measures at a
// time, and what is not the protocol ends in a reset.
func TestServerRefuses(t *testing.T) {
	to, token := serveHere(t, nil)
	s, err := open(t.Context(), to, token)
	require.NoError(t, err)
	defer s.close()
	_, err = open(t.Context(), to, token)
	require.ErrorIs(t, err, ErrRefused)
	require.ErrorContains(t, err, "another host measures now")

	for name, first := range map[string][]byte{
		"unknown session": order{work: workRequest, size: 1}.bytes(),
		"too much":        order{work: workRequest, size: maxOrderSize + 1, session: s.id}.bytes(),
		"too long":        order{work: workDownload, time: maxOrderTime + time.Second, session: s.id}.bytes(),
		"HTTP":            []byte("GET / HTTP/1.1\r\n\r\n"),
		"garbage":         append(opening(controlVersion), 0xff, 0xff, 0xff, '\n'),
		"out of place":    append(opening(controlVersion), "{\"ask\":\"meters\"}\n"...),
	} {
		c, err := dial(t.Context(), to, portRange{})
		require.NoError(t, err)
		_, err = c.Write(first)
		require.NoError(t, err)
		b, err := io.ReadAll(c)
		require.False(t, err == nil && bytes.Count(b, []byte("\n")) > 1, "%s: %q", name, b)
		require.NoError(t, c.Close())
	}

	c, err := dial(t.Context(), to, portRange{})
	require.NoError(t, err)
	_, err = c.Write(opening(controlVersion + 1))
	require.NoError(t, err)
	_, err = newTalk(c).receive()
	require.ErrorIs(t, err, ErrRefused)
	require.ErrorContains(t, err, "version 4")
	require.NoError(t, c.Close())

	_, err = s.sample()
	require.NoError(t, err, "the session goes on")
	s.close()
	require.Eventually(t, func() bool { // the next one gets in
		s, err := open(t.Context(), to, token)
		if err != nil {
			return false
		}
		s.close()
		return true
	}, 30*time.Second, time.Millisecond)
}

// TestServerIsBounded: connections beyond the limit are reset, and there is room
// again when others go.
func TestServerIsBounded(t *testing.T) {
	to, token := serveHere(t, nil)
	var conns []net.Conn
	for range maxConns {
		c, err := dial(t.Context(), to, portRange{})
		require.NoError(t, err)
		conns = append(conns, c)
	}
	c, err := dial(t.Context(), to, portRange{}) // the reset may come even before
	if err == nil {
		_, err = c.Read(make([]byte, 1))
		require.NoError(t, c.Close())
	}
	require.Error(t, err)
	require.NotErrorIs(t, err, os.ErrDeadlineExceeded)
	for _, c := range conns {
		require.NoError(t, c.Close())
	}
	require.Eventually(t, func() bool {
		s, err := open(t.Context(), to, token)
		if err != nil {
			return false
		}
		s.close()
		return true
	}, 30*time.Second, time.Millisecond)
}

// TestFirstWordsMayNotDrag: a client without the token cannot keep a place of
// the server by a byte now and then.
func TestFirstWordsMayNotDrag(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ours, theirs := net.Pipe()
		s := &server{log: slog.New(slog.DiscardHandler)}
		done := make(chan struct{})
		go func() {
			defer close(done)
			_ = s.handle(t.Context(), theirs, func() {})
			_ = theirs.Close()
		}()
		start := time.Now()
		_, err := ours.Write(opening(controlVersion))
		require.NoError(t, err)
		_, err = newTalk(ours).receive()
		require.NoError(t, err)
		for b := range slices.Values([]byte(`{"nonce":"MDEyMzQ1Njc4OWFiY2RlZg=="}`)) {
			time.Sleep(time.Second)
			if _, err = ours.Write([]byte{b}); err != nil {
				break
			}
		}
		require.Error(t, err)
		require.LessOrEqual(t, time.Since(start), firstWords+time.Second, "by the clock of the bubble")
		<-done
	})
}

func TestCostIsUnknownWithoutADaemon(t *testing.T) {
	known := cost{programs: 2e-9, gateways: 1e-9, known: true}
	a, b := meters{own: 1, hasGateway: true, gateway: 1}, meters{own: 2, hasGateway: true, gateway: 2, serving: reading{OwnCPU: 1}}
	require.Equal(t, known, a.until(b))
	b.serving.GatewayCPU = unknownCPU
	require.False(t, a.until(b).known)
	b.serving.GatewayCPU, b.gateway = 0, unknownCPU
	require.False(t, a.until(b).known)
	require.True(t, math.IsNaN(perGB(all)(measured{bytes: 1}, cost{})))
	require.True(t, math.IsNaN(perGB(all)(measured{}, known)))
	half := cost{programs: .25, gateways: .75, known: true}
	require.InDelta(t, 2, perGB(all)(measured{bytes: 5e8}, half), 1e-9)
	require.InDelta(t, .5, perGB(ofPrograms)(measured{bytes: 5e8}, half), 1e-9)
}

func TestRemarks(t *testing.T) {
	var r remarks
	r.add(measured{count: 5}, carriage{as: 5})
	require.Empty(t, r.String())
	r.add(measured{count: 8, failed: 2}, carriage{as: 1, other: 4, reason: "rate_limit"})
	r.add(measured{}, carriage{other: 1, reason: "mode"})
	r.failure = "connection refused"
	require.Equal(t, "fallback: rate_limit (5 of 11 connections looked up); 2 of 15 connections failed; connection refused", r.String())
}

func TestMain(m *testing.M) { os.Exit(leak.Main(m)) }
