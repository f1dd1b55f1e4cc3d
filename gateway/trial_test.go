package gateway

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/ebpf"
	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/negotiate"
)

var trialPeer = netip.MustParseAddr("10.0.0.2")

func testTrials(steer *fakeSteering) *trials {
	return newTrials(config.Config{Policy: []config.Rule{
		{Name: "redis", Match: config.Match{Ports: []uint16{6379}}, Action: config.ActionAccelerate},
		{Name: "dns", Match: config.Match{Proto: config.ProtoUDP, Ports: []uint16{5000}}, Action: config.ActionAccelerate},
		{Name: "rest"},
	}}.WithDefaults(), steer)
}

func TestTrialComesBehindTheRules(t *testing.T) {
	steer := newFakeSteering()
	ts := testTrials(steer)
	end, err := ts.begin(Trial{Peer: netip.MustParseAddr("::ffff:10.0.0.2"), Port: 4792, Action: config.ActionAccelerate, Carrier: config.CarrierSoft})
	require.NoError(t, err)
	rules := steer.rules()
	require.Len(t, rules, 4)
	require.Equal(t, ebpf.Rule{
		Ports: []uint16{4792}, Peers: []netip.Prefix{netip.MustParsePrefix("10.0.0.2/32")}, Action: ebpf.ActionAccelerate, Sole: true,
	}, rules[3])

	// The programs find it although a rule before it matches everything.
	p, err := ebpf.CompilePolicy(rules, nil)
	require.NoError(t, err)
	require.Equal(t, ebpf.Verdict{Rule: 3, Action: ebpf.ActionAccelerate}, p.Decide(ebpf.Query{Peer: trialPeer, Port: 4792}))
	require.Equal(t, 2, p.Decide(ebpf.Query{Peer: trialPeer, Port: 4793}).Rule)

	_, err = ts.begin(Trial{Peer: netip.MustParseAddr("10.0.0.3"), Port: 4792, Action: config.ActionPass})
	require.ErrorIs(t, err, ErrTrialHeld)
	end()
	end()
	require.Len(t, steer.rules(), 3)
	again, err := ts.begin(Trial{Peer: trialPeer, Port: 4792, Action: config.ActionPass})
	require.NoError(t, err)
	again()
}

func TestTrialsAreRefused(t *testing.T) {
	steer := newFakeSteering()
	ts := testTrials(steer)
	good := Trial{Peer: trialPeer, Port: 4792, Action: config.ActionAccelerate}
	for field, edits := range map[string][]func(*Trial){
		"peer": {
			func(t *Trial) { t.Peer = netip.Addr{} },
			func(t *Trial) { t.Peer = netip.MustParseAddr("fe80::1%eth0") },
			func(t *Trial) { t.Peer = netip.MustParseAddr("0.0.0.0") },
			func(t *Trial) { t.Peer = netip.MustParseAddr("ff02::1") },
		},
		"port":    {func(t *Trial) { t.Port = 0 }, func(t *Trial) { t.Port = 22 }, func(t *Trial) { t.Port = 6379 }},
		"action":  {func(t *Trial) { t.Action = "" }, func(t *Trial) { t.Action = config.ActionAuto }},
		"carrier": {func(t *Trial) { t.Carrier = config.CarrierRelay }, func(t *Trial) { t.Carrier = "shm" }},
	} {
		for _, edit := range edits {
			bad := good
			edit(&bad)
			_, err := ts.begin(bad)
			var te *TrialError
			require.ErrorAs(t, err, &te)
			require.Equal(t, field, te.Field)
		}
	}
	require.Nil(t, steer.rules())

	good.Port = 5000 // a rule for datagrams is about no connection
	end, err := ts.begin(good)
	require.NoError(t, err)
	end()
	steer.refuse = errFake
	_, err = ts.begin(good)
	require.ErrorIs(t, err, errFake)
	steer.refuse = nil
	var ends []func()
	for i := range maxTrials {
		good.Port = uint16(8000 + i)
		end, err := ts.begin(good)
		require.NoError(t, err)
		ends = append(ends, end)
	}
	good.Port++
	_, err = ts.begin(good)
	require.ErrorContains(t, err, "no room")
	for _, end := range ends {
		end()
	}
}

// TestTrialOffersOneCarrier: a client's flow on trial is offered by the carrier
// of the trial only, others by all; what becomes of it is not remembered.
func TestTrialOffersOneCarrier(t *testing.T) {
	p := newGatewayPair(t)
	g, steer := p.g[0], p.steer[0]
	flowTo := func(port uint16) *flow {
		p.port++
		f, fresh := g.newFlow(config.SideClient, Tuple{Local: netip.AddrPortFrom(pairAddrs[0], p.port), Remote: netip.AddrPortFrom(pairAddrs[1], port)}, 7)
		require.True(t, fresh)
		t.Cleanup(func() { g.unlink(f) })
		return f
	}
	offers := func(f *flow) (kinds []negotiate.CarrierKind) {
		var pr negotiate.Proposal
		f.makeOffers(&pr)
		for _, o := range pr.Carriers {
			kinds = append(kinds, o.Kind)
		}
		f.mu.Lock()
		carries := f.carries
		f.mu.Unlock()
		done := make(chan struct{})
		f.closeCarries(carries, func() { close(done) })
		<-done
		return kinds
	}
	for carrier, kind := range map[config.Carrier]negotiate.CarrierKind{config.CarrierShm: negotiate.CarrierSHM, config.CarrierSoft: negotiate.CarrierSoft} {
		end, err := g.Try(Trial{Peer: pairAddrs[1], Port: 4792, Action: config.ActionAccelerate, Carrier: carrier})
		require.NoError(t, err)
		require.Equal(t, []negotiate.CarrierKind{kind}, offers(flowTo(4792)))
		require.Len(t, offers(flowTo(80)), 2)
		refused := negotiate.Verdict{Outcome: negotiate.OutcomeReleased, Reason: negotiate.ReasonNoCommonCarrier, Remote: true}
		f := flowTo(4792)
		end() // what its connections meet may come to light afterwards
		g.remember(f, refused)
		require.Empty(t, steer.peers)
	}
	g.remember(flowTo(4792), negotiate.Verdict{Outcome: negotiate.OutcomeReleased, Reason: negotiate.ReasonNoCommonCarrier, Remote: true})
	require.NotEmpty(t, steer.peers)
	require.Len(t, offers(flowTo(4792)), 2)
}

func TestAdminTrial(t *testing.T) {
	a := startAdmin(t, nil)
	want := Trial{Peer: trialPeer, Port: 4792, Action: config.ActionAccelerate, Carrier: config.CarrierSoft}
	held, err := a.client.Try(t.Context(), want)
	require.NoError(t, err)
	got, ended := a.ctl.trials()
	require.Equal(t, []Trial{want}, got)
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
// request and writing an answer are none for a trial, nor is that of the client
// for an answer.
func TestAdminTrialOutlivesTheRequestLimits(t *testing.T) {
	socket, err := listenAdminSocket(t.TempDir()+"/a.sock", false)
	require.NoError(t, err)
	ctl := &fakeControl{}
	over := make(chan struct{})
	s := &AdminServer{socket: socket, log: slog.New(slog.DiscardHandler), ctl: ctl, src: ctl, over: over, succession: newSuccession()}
	const limit = 500 * time.Millisecond
	srv := s.httpServer(s.adminMux(http.NotFoundHandler()), socket.withPeer)
	srv.ReadTimeout, srv.WriteTimeout, srv.IdleTimeout = limit, limit, limit
	done := make(chan error, 1)
	go func() { done <- srv.Serve(socket) }()
	c := NewAdminClient(socket.path)
	c.http.Timeout = limit
	held, err := c.Try(t.Context(), Trial{Peer: trialPeer, Port: 4792, Action: config.ActionPass})
	require.NoError(t, err)
	time.Sleep(3 * limit)
	select {
	case <-held.Done():
		t.Error("ended by a limit of the server")
	default:
	}
	_, ended := ctl.trials()
	require.Zero(t, ended)
	close(over)
	<-held.Done()
	held.Close()
	c.Close()
	require.NoError(t, srv.Close())
	require.ErrorIs(t, <-done, http.ErrServerClosed)
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
		var doc ErrorDoc
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

	a.ctl.tryError = &TrialError{"port", "22 is on the never-list"}
	_, err := a.client.Try(t.Context(), Trial{})
	require.ErrorContains(t, err, "never-list")
	a.ctl.tryError = ErrTrialHeld
	_, err = a.client.Try(t.Context(), Trial{})
	require.ErrorIs(t, err, ErrTrialHeld)
	a.ctl.tryError = errFake
	_, err = a.client.Try(t.Context(), Trial{})
	require.ErrorContains(t, err, errFake.Error())
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = a.client.Try(ctx, Trial{})
	require.ErrorIs(t, err, context.Canceled)
	a.stop()
	_, err = a.client.Try(t.Context(), Trial{})
	require.ErrorIs(t, err, ErrDaemonUnreachable)
	_, err = a.client.DaemonPID(t.Context())
	require.ErrorIs(t, err, ErrDaemonUnreachable)
}
