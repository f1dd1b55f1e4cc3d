package bench

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/internal/comparison"
	"github.com/smcgw/smcgw/lab/testnet"
)

// builtProgram is smcgw-load, built for a test.
func builtProgram(t *testing.T) *Program {
	t.Helper()
	testnet.Require(t, "gcc")
	file := filepath.Join(t.TempDir(), "smcgw-load")
	out, err := exec.Command("gcc", "-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-pthread", "-o", file, "program/load.c").CombinedOutput()
	require.NoError(t, err, "%s", out)
	return &Program{Path: file, Env: append(os.Environ(), "SMCGW_TEST=library")}
}

// serveWith serves with a program, and opens a session there.
func serveWith(t *testing.T, network, at string, p *Program) *session {
	t.Helper()
	ln, err := net.Listen(network, at)
	require.NoError(t, err)
	token := NewToken()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- Serve(ctx, ln, ServeOptions{Token: token, Program: p}) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-done)
	})
	s, err := open(t.Context(), ln.Addr().(*net.TCPAddr).AddrPort(), token)
	require.NoError(t, err)
	t.Cleanup(s.close)
	return s
}

// TestProgram: it does the works as this program does, at either end and at both, and leaves the socket to the server after that.
func TestProgram(t *testing.T) {
	p := builtProgram(t)
	for network, at := range map[string]string{"tcp4": "127.0.0.1:0", "tcp6": "[::1]:0"} {
		s := serveWith(t, network, at, p)
		require.Empty(t, s.noProgram)
		const d = 50 * time.Millisecond
		for _, ends := range []struct {
			who  question
			load *loading
		}{
			{askOwn, &loading{program: p}}, {askProgram, nil}, {askProgram, &loading{program: p}}, {askLibrary, &loading{program: p, library: true}},
		} {
			require.NoError(t, s.serveBy(ends.who))
			s.load = ends.load
			m, err := s.upload(t.Context(), d)
			require.NoError(t, err)
			require.Positive(t, m.bytes)
			require.GreaterOrEqual(t, m.elapsed, d)
			require.Equal(t, s.to, m.conns[0].remote)
			m, err = s.download(t.Context(), d)
			require.NoError(t, err)
			require.Positive(t, m.bytes)
			m, err = s.ping(t.Context(), d)
			require.NoError(t, err)
			require.Positive(t, m.count)
			require.Positive(t, m.latency.TotalCount())
			require.Less(t, m.latency.Min(), int64(m.elapsed))
			m, err = besideStream((*session).ping)(s, t.Context(), d)
			require.NoError(t, err)
			require.Len(t, m.conns, 2)
		}

		// Whoever does not know the session is not served by it.
		c, err := net.Dial("tcp", s.to.String())
		require.NoError(t, err)
		_, err = c.Write(append(opening(controlVersion), make([]byte, orderSize-openingSize)...))
		require.NoError(t, err)
		require.NoError(t, c.SetDeadline(time.Now().Add(time.Minute)))
		_, err = c.Read(make([]byte, 1))
		require.True(t, errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET), "%v", err)
		require.NoError(t, c.Close())

		s.load = nil
		require.NoError(t, s.serveBy(askOwn))
		m := measured{}
		require.NoError(t, s.request(t.Context(), &m))
	}
}

// TestProgramOfSessionsThatEnd: the socket is the server's again where a session ends, or the server does, with the program serving.
func TestProgramOfSessionsThatEnd(t *testing.T) {
	p := builtProgram(t)
	ln, err := net.Listen("tcp4", "127.0.0.1:0")
	require.NoError(t, err)
	token, at := NewToken(), ln.Addr().(*net.TCPAddr).AddrPort()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- Serve(ctx, ln, ServeOptions{Token: token, Program: p}) }()
	var s *session
	for range 2 {
		require.Eventually(t, func() bool { // the one before may not have ended there
			s, err = open(t.Context(), at, token)
			return err == nil
		}, time.Minute, 10*time.Millisecond, "%v", err)
		require.NoError(t, s.serveBy(askProgram))
		s.load = &loading{program: p}
		_, err = s.ping(t.Context(), 10*time.Millisecond)
		require.NoError(t, err)
		if ctx.Err() == nil {
			s.close()
		}
	}
	cancel()
	require.NoError(t, <-done)
}

func TestProgramErrors(t *testing.T) {
	p := builtProgram(t)
	s := serveWith(t, "tcp4", "127.0.0.1:0", &Program{Missing: "it was not installed"})
	require.Equal(t, "it was not installed", s.noProgram)
	err := s.serveBy(askProgram)
	require.ErrorIs(t, err, ErrProgram)
	require.ErrorContains(t, err, "it was not installed")
	m := measured{}
	require.NoError(t, s.request(t.Context(), &m), "the server serves")

	s.id[0]++
	_, err = (&loading{program: p}).do(t.Context(), s, workEcho, time.Millisecond, nil, nil)
	require.ErrorContains(t, err, "smcgw-load: echo: ")
	_, err = (&loading{program: &Program{Path: "/bin/false"}}).do(t.Context(), s, workEcho, time.Millisecond, nil, nil)
	require.ErrorIs(t, err, ErrProgram)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = (&loading{program: p}).do(ctx, s, workEcho, time.Minute, nil, nil)
	require.ErrorIs(t, err, context.Canceled)
}

// TestRunSaysWhyNotInProcess: rows of the in-process way say what they lack.
func TestRunSaysWhyNotInProcess(t *testing.T) {
	ln, err := net.Listen("tcp4", "127.0.0.1:0")
	require.NoError(t, err)
	g := &fakeGateway{pid: os.Getpid(), devices: []report.DeviceInfo{
		{Kind: report.DeviceShm, Carrier: report.CarrierShm, State: report.DeviceAbsent},
		{Kind: report.DeviceSoft, Carrier: report.CarrierSoft, State: report.DeviceActive},
		{Kind: report.DeviceHW, Carrier: report.CarrierHW, State: report.DeviceAbsent, Error: "not here"},
	}}
	book := &recorder{Listener: ln, g: g}
	g.conns = book.conns
	to, token := serveOn(t, book, nil)
	const up, ping = "upload, 1 stream", "ping-pong 64 B, p50"
	for want, p := range map[string]*Program{"it is not there": {Missing: "it is not there"}, "on the serving host there is no smcgw-load": {Path: "/bin/false"}} {
		r, err := Run(t.Context(), Options{To: to, Token: token, Duration: 10 * time.Millisecond, Rounds: 1, Gateway: g, Program: p})
		require.NoError(t, err)
		require.Equal(t, want, series(t, r, up, "in-process soft").Note)
		require.Equal(t, "device absent: not here", series(t, r, ping, "in-process hw").Note)
		require.Equal(t, 1, series(t, r, up, comparison.TCP).Spread().N)
	}
}
