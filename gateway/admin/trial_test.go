package admin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/report"
)

var triedPeer = netip.MustParseAddr("10.0.0.2")

func TestAdminTrial(t *testing.T) {
	a := startAdmin(t, nil)
	want := config.Trial{Peer: triedPeer, Port: 4792, Action: report.ActionAccelerate, Carrier: report.CarrierSoft}
	held, err := a.client.Try(t.Context(), want)
	require.NoError(t, err)
	got, ended := a.ctl.trials()
	require.Equal(t, []config.Trial{want}, got)
	require.Zero(t, ended)

	// Others are answered meanwhile.
	_, err = a.client.Peers(t.Context())
	require.NoError(t, err)
	pid, err := a.client.DaemonPID(t.Context())
	require.NoError(t, err)
	require.Equal(t, os.Getpid(), pid)
	select {
	case <-held.Done():
		t.Fatal("the trial ended by itself")
	default:
	}
	held.Close()
	held.Close()
	require.Eventually(t, func() bool { _, ended := a.ctl.trials(); return ended == 1 }, 30*time.Second, time.Millisecond)

	held, err = a.client.Try(t.Context(), want)
	require.NoError(t, err)
	a.stop()
	<-held.Done()
	_, ended = a.ctl.trials()
	require.Equal(t, 2, ended)
	held.Close()
}

// TestAdminTrialEndsWithItsClient: one that just goes, without a word.
func TestAdminTrialEndsWithItsClient(t *testing.T) {
	a := startAdmin(t, nil)
	c, err := net.Dial("unix", a.cfg.Admin)
	require.NoError(t, err)
	body := `{"peer":"10.0.0.2","port":4792,"action":"pass"}`
	_, err = io.WriteString(c, "POST /v1/trial HTTP/1.1\r\nHost: smcgw\r\nContent-Length: 47\r\n\r\n"+body)
	require.NoError(t, err)
	require.Len(t, body, 47)
	_, err = c.Read(make([]byte, 1))
	require.NoError(t, err)
	require.NoError(t, c.Close())
	require.Eventually(t, func() bool { _, ended := a.ctl.trials(); return ended == 1 }, 30*time.Second, time.Millisecond)
}

// TestAdminTrialOutlivesTheRequestLimits: the limits of the server for reading a
// request and writing an answer do not bound a trial, nor does that of the client
// for an answer.
func TestAdminTrialOutlivesTheRequestLimits(t *testing.T) {
	socket, err := listenAdminSocket(t.TempDir()+"/a.sock", false)
	require.NoError(t, err)
	ctl := &fakeControl{}
	life, end := context.WithCancel(t.Context())
	s := &Server{socket: socket, log: slog.New(slog.DiscardHandler), ctl: ctl, src: ctl, life: life}
	const limit = 500 * time.Millisecond
	srv := s.httpServer(s.adminMux(), socket.withPeer)
	srv.ReadTimeout, srv.WriteTimeout, srv.IdleTimeout = limit, limit, limit
	done := make(chan error, 1)
	go func() { done <- srv.Serve(socket) }()
	c := NewClient(socket.path)
	c.http.Timeout = limit
	held, err := c.Try(t.Context(), config.Trial{Peer: triedPeer, Port: 4792, Action: report.ActionPass})
	require.NoError(t, err)
	time.Sleep(3 * limit)
	select {
	case <-held.Done():
		t.Error("ended by a limit of the server")
	default:
	}
	_, ended := ctl.trials()
	require.Zero(t, ended)
	end()
	<-held.Done()
	held.Close()
	c.Close()
	require.NoError(t, srv.Close())
	require.ErrorIs(t, <-done, http.ErrServerClosed)
}

// TestAdminTrialHeld: a trial waits for the end of the one before, and not for ever.
func TestAdminTrialHeld(t *testing.T) {
	t.Parallel()
	a := startAdmin(t, nil)
	a.ctl.tryError = config.ErrTrialHeld
	_, err := a.client.Try(t.Context(), config.Trial{Port: 4792})
	require.ErrorIs(t, err, config.ErrTrialHeld)
	require.ErrorContains(t, err, "port 4792")
	time.AfterFunc(100*time.Millisecond, func() {
		a.ctl.mu.Lock()
		defer a.ctl.mu.Unlock()
		a.ctl.tryError = nil
	})
	held, err := a.client.Try(t.Context(), config.Trial{Port: 4792})
	require.NoError(t, err)
	held.Close()
}

func TestAdminTrialErrors(t *testing.T) {
	a := startAdmin(t, nil)
	post := func(body string) (int, string) {
		t.Helper()
		c := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", a.cfg.Admin)
		}}}
		resp, err := c.Post("http://smcgw/v1/trial", "application/json", strings.NewReader(body))
		require.NoError(t, err)
		defer resp.Body.Close()
		var doc errorDoc
		require.NoError(t, json.NewDecoder(resp.Body).Decode(&doc))
		return resp.StatusCode, doc.Error
	}
	for _, body := range []string{"", "{", `{"peer":"x"}`, `{"ports":[1]}`, `{"port":1}{"port":2}`, strings.Repeat(" ", adminMaxBody+1)} {
		code, text := post(body)
		require.Equal(t, http.StatusBadRequest, code, body)
		require.Contains(t, text, "trial: ")
	}
	got, _ := a.ctl.trials()
	require.Empty(t, got)

	a.ctl.tryError = &config.TrialError{Field: "port", Problem: "22 is on the never-list"}
	_, err := a.client.Try(t.Context(), config.Trial{})
	require.ErrorContains(t, err, "never-list")
	a.ctl.tryError = errFake
	_, err = a.client.Try(t.Context(), config.Trial{})
	require.ErrorContains(t, err, errFake.Error())
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = a.client.Try(ctx, config.Trial{})
	require.ErrorIs(t, err, context.Canceled)
	a.stop()
	_, err = a.client.Try(t.Context(), config.Trial{})
	require.ErrorIs(t, err, ErrDaemonUnreachable)
	_, err = a.client.DaemonPID(t.Context())
	require.ErrorIs(t, err, ErrDaemonUnreachable)
}

func TestSet(t *testing.T) {
	a := startAdmin(t, nil)
	res, err := a.client.Set(t.Context(), Setting{"log.level", "debug"})
	require.NoError(t, err)
	require.Equal(t, Result{Schema: ResultSchema, Verb: "set", Message: "log.level is debug until the configuration is read again"}, res)
	_, err = a.client.Set(t.Context(), Setting{"log.level", "loud"})
	require.EqualError(t, err, `answer of the daemon: set: "loud" is no level`)
	_, err = a.client.Set(t.Context(), Setting{"mode", "off"})
	require.EqualError(t, err, `answer of the daemon: set: "mode" cannot be set`)
	a.ctl.fail = errFake
	_, err = a.client.Set(t.Context(), Setting{"log.level", "info"})
	require.ErrorContains(t, err, errFake.Error())
}

// An opt-in counts before the client goes on, until the client ends it or is gone.
func TestOptIn(t *testing.T) {
	a := startAdmin(t, nil)
	opted := func() []config.OptIn {
		a.ctl.mu.Lock()
		defer a.ctl.mu.Unlock()
		return a.ctl.optedIn
	}
	h, err := a.client.OptIn(t.Context(), config.OptIn{Cgroup: "/a", ID: 7})
	require.NoError(t, err)
	require.Equal(t, []config.OptIn{{Cgroup: "/a", ID: 7}}, opted())
	h.Close()
	require.Eventually(t, func() bool { return len(opted()) == 0 }, 30*time.Second, time.Millisecond)

	b := &fakeControl{feed: report.NewFeed()}
	h, err = a.client.OptIn(t.Context(), config.OptIn{Cgroup: "/a", ID: 7})
	require.NoError(t, err)
	require.NoError(t, a.server.StepAside())
	after, err := Succeed(a.cfg, "2.0.0", nil)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- after.Serve(ctx, b, b) }()
	require.Eventually(t, func() bool {
		b.mu.Lock()
		defer b.mu.Unlock()
		return slices.Equal(b.optedIn, opted())
	}, 30*time.Second, time.Millisecond, "it counts at both gateways")
	h.Close()
	require.Eventually(t, func() bool {
		b.mu.Lock()
		defer b.mu.Unlock()
		return len(b.optedIn)+len(opted()) == 0
	}, 30*time.Second, time.Millisecond)
	cancel()
	require.NoError(t, <-served)
	require.NoError(t, a.server.StepBack())

	_, err = a.client.OptIn(t.Context(), config.OptIn{Cgroup: "/a"})
	require.EqualError(t, err, "answer of the daemon: opt-in: no such cgroup")
	h, err = a.client.OptIn(t.Context(), config.OptIn{Cgroup: "/a", ID: 7})
	require.NoError(t, err)
	a.stop()
	<-h.Done()
	_, err = a.client.OptIn(t.Context(), config.OptIn{Cgroup: "/a", ID: 7})
	require.ErrorIs(t, err, ErrDaemonUnreachable)
}

func TestAdminReload(t *testing.T) {
	a := startAdmin(t, nil)
	r, err := a.client.Reload(t.Context(), false)
	require.NoError(t, err)
	require.Equal(t, "reload", r.Verb)
	require.Equal(t, []string{"reload"}, a.ctl.taken())
	a.ctl.breakWith(errors.New("line 3: mdoe: unknown field"))
	_, err = a.client.Reload(t.Context(), false)
	require.ErrorContains(t, err, "line 3: mdoe: unknown field")
	a.ctl.breakWith(nil)
}

// A refusal says what puts the configuration in force.
func TestAdminReloadRemedies(t *testing.T) {
	a := startAdmin(t, nil)
	for _, tt := range []struct {
		err       error
		want, not string
	}{
		{errFake, errFake.Error(), "smcgw"},
		{fmt.Errorf("devices: %w", config.ErrRestart), "devices: takes a restart", "drain"},
		{fmt.Errorf("admin: %w", config.ErrStop), "smcgw drain --socket " + a.cfg.Admin + " ends this gateway", "--replace"},
		{errors.Join(config.ErrRestart, config.ErrStop), "smcgw drain --socket " + a.cfg.Admin, "--replace"},
	} {
		a.ctl.breakWith(tt.err)
		for _, replace := range []bool{false, true} {
			_, err := a.client.Reload(t.Context(), replace)
			require.ErrorIs(t, err, errRefused)
			require.ErrorContains(t, err, tt.want)
			require.NotContains(t, err.Error(), tt.not)
		}
	}
	a.ctl.breakWith(nil)
}

// A reload says which way it took, and has a deadline.
func TestAdminReplace(t *testing.T) {
	a := startAdmin(t, nil)
	r, err := a.client.Reload(t.Context(), true)
	require.NoError(t, err)
	require.Equal(t, "a new gateway has taken over", r.Message)
	require.Equal(t, []string{"replace"}, a.ctl.taken())
}

// The service manager ends no reload that is about to have an answer.
func TestServiceWaitsForReload(t *testing.T) {
	unit, err := os.ReadFile("../../packaging/systemd/smcgw.service")
	require.NoError(t, err)
	found := regexp.MustCompile(`(?m)^TimeoutStartSec=(\d+)$`).FindSubmatch(unit)
	require.NotNil(t, found, "the default is 90 s")
	seconds, err := strconv.Atoi(string(found[1]))
	require.NoError(t, err)
	require.Greater(t, time.Duration(seconds)*time.Second, reloadLimit+clientTimeout)
}
