package bench

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/negotiate"
)

// accepting is a service on loopback that accepts; it tells the addresses of its clients.
func accepting(t *testing.T) (netip.AddrPort, <-chan netip.AddrPort) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	clients := make(chan netip.AddrPort, 100)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			clients <- c.RemoteAddr().(*net.TCPAddr).AddrPort()
			_, _ = c.Read(make([]byte, 1)) // until the client closes
			_ = c.Close()
		}
	}()
	t.Cleanup(func() {
		require.NoError(t, ln.Close())
		<-done
	})
	return ln.Addr().(*net.TCPAddr).AddrPort(), clients
}

// saying is a gateway that says the same of every connection that the service has seen.
func saying(to netip.AddrPort, clients <-chan netip.AddrPort, info report.ConnInfo) *fakeGateway {
	var all []report.ConnInfo
	return &fakeGateway{
		devices: []report.DeviceInfo{
			{Name: "soft0", Carrier: report.CarrierSoft, State: report.DeviceActive, MTU: 1024, GIDs: []netip.Addr{netip.MustParseAddr("::ffff:127.0.0.1")}},
			{Name: "shm0", Carrier: report.CarrierShm, State: report.DeviceActive, MTU: 4096},
		},
		conns: func(q report.ConnQuery) []report.ConnInfo {
			for len(clients) > 0 {
				info.Local, info.Remote, info.Proto = <-clients, to, "tcp"
				all = append(all, info)
			}
			if q.All {
				return all
			}
			return nil
		},
	}
}

func TestPing(t *testing.T) {
	to, clients := accepting(t)
	g := saying(to, clients, report.ConnInfo{Carrier: report.CarrierSoft, State: "carrying"})
	var told []PingTry
	r, err := Ping(t.Context(), PingOptions{
		To: []netip.AddrPort{to}, Count: 2, Interval: 10 * time.Millisecond, Gateway: g, Each: func(p PingTry) { told = append(told, p) },
	})
	require.NoError(t, err)
	require.Equal(t, r.Tries, told)
	require.Equal(t, 2, r.Carried)
	require.Zero(t, r.Native+r.Failed+r.Relayed)
	require.Equal(t, 2, r.Tries[1].Sequence)
	require.Equal(t, 1024, r.Tries[0].MTU)
	require.Equal(t, StageCarried, r.Tries[0].Stage)
	require.Positive(t, r.Minimum)
	require.LessOrEqual(t, r.Minimum, r.Median)
	require.LessOrEqual(t, r.Median, r.Maximum)
	require.Empty(t, g.tried, "no rule is changed")
}

// The document has these fields; a value that is missing would break a script.
func TestPingDocument(t *testing.T) {
	r := &PingReport{Schema: PingSchema, Tries: []PingTry{
		{
			Service: netip.MustParseAddrPort("10.0.0.2:6379"), Sequence: 1, Local: netip.MustParseAddrPort("10.0.0.1:40000"),
			ConnectSeconds: 0.5, Stage: StageDeclined, Reason: "no_memory", DecidedBy: report.DecidedRemote,
		},
		{Service: netip.MustParseAddrPort("10.0.0.2:6379"), Sequence: 2, ConnectSeconds: 5, Error: "no answer"},
	}}
	r.sum()
	text, err := json.Marshal(r)
	require.NoError(t, err)
	require.Equal(t, `{"schema":"smcgw.ping/v1","offer":false,"tries":[`+
		`{"service":"10.0.0.2:6379","sequence":1,"local":"10.0.0.1:40000","connect_seconds":0.5,"stage":"declined","carrier":"","reason":"no_memory","decided_by":"remote"},`+
		`{"service":"10.0.0.2:6379","sequence":2,"connect_seconds":5,"carrier":"","reason":"","error":"no answer"}],`+
		`"carried":0,"relayed":0,"native":1,"failed":1,"connect_min_seconds":0.5,"connect_median_seconds":0.5,"connect_max_seconds":0.5}`, string(text))
}

// An offer is a trial that ends with the connections.
func TestPingOffers(t *testing.T) {
	to, clients := accepting(t)
	g := saying(to, clients, report.ConnInfo{Reason: "peer_no_option", DecidedBy: report.DecidedRemote})
	r, err := Ping(t.Context(), PingOptions{To: []netip.AddrPort{to}, Count: 1, Gateway: g, Offer: true, Carrier: report.CarrierShm})
	require.NoError(t, err)
	require.Equal(t, []config.Trial{{Peer: to.Addr(), Port: to.Port(), Action: report.ActionAccelerate, Carrier: report.CarrierShm}}, g.tried)
	require.Nil(t, g.trial, "the trial has ended")
	require.Equal(t, StageNoAnswer, r.Tries[0].Stage)
	require.Equal(t, 1, r.Native)

	g.tryErr = &config.TrialError{Field: "port", Problem: "belongs to the rule redis"}
	_, err = Ping(t.Context(), PingOptions{To: []netip.AddrPort{to}, Gateway: g, Offer: true})
	require.ErrorIs(t, err, g.tryErr)
}

// A port without a service is no connection; the gateway is not asked.
func TestPingRefused(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	to := ln.Addr().(*net.TCPAddr).AddrPort()
	require.NoError(t, ln.Close())
	r, err := Ping(t.Context(), PingOptions{To: []netip.AddrPort{to}, Count: 1, Gateway: &fakeGateway{}})
	require.NoError(t, err)
	require.Equal(t, "connection refused", r.Tries[0].Error)
	require.Equal(t, 1, r.Failed)
	require.Zero(t, r.Maximum)
}

// What the gateway has not seen after a while is said to be so, unless it never reports such connections.
func TestPingUnseen(t *testing.T) {
	to, _ := accepting(t)
	g := &fakeGateway{conns: func(report.ConnQuery) []report.ConnInfo { return nil }}
	r, err := Ping(t.Context(), PingOptions{To: []netip.AddrPort{to}, Count: 1, Gateway: g})
	require.NoError(t, err)
	require.Equal(t, "address", r.Tries[0].Reason)
	require.Equal(t, StageNotOffered, r.Tries[0].Stage)
	c, err := becameOf(t.Context(), g, measured{conns: []tuple{{netip.MustParseAddrPort("10.0.0.1:1"), netip.MustParseAddrPort("10.0.0.2:2")}}})
	require.NoError(t, err)
	require.Equal(t, ReasonUnseen, c.Reason)
	require.Equal(t, StageNotOffered, stageOf(c.Carrier, c.Reason, c.DecidedBy))
}

// An interrupted ping returns what it has.
func TestPingInterrupted(t *testing.T) {
	to, clients := accepting(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	enough := errors.New("enough")
	r, err := Ping(ctx, PingOptions{
		To: []netip.AddrPort{to}, Count: 1000, Gateway: saying(to, clients, report.ConnInfo{Carrier: report.CarrierShm}),
		Each: func(PingTry) { cancel(enough) },
	})
	require.ErrorIs(t, err, enough)
	require.Equal(t, 1, r.Carried)
}

func TestPingOptions(t *testing.T) {
	to := []netip.AddrPort{netip.MustParseAddrPort("10.0.0.2:80")}
	for _, o := range []PingOptions{
		{},
		{To: make([]netip.AddrPort, 17)},
		{To: []netip.AddrPort{netip.MustParseAddrPort("10.0.0.2:0")}},
		{To: to, Count: -1},
		{To: to, Count: 1001},
		{To: to, Interval: time.Millisecond},
		{To: to, Timeout: -1},
	} {
		_, err := Ping(t.Context(), o)
		require.ErrorIs(t, err, ErrPing)
	}
}

// Every reason has a stage, those of this host the first.
func TestStages(t *testing.T) {
	for _, r := range negotiate.Reasons() {
		require.Contains(t, []Stage{StageNotOffered, StageNoAnswer, StageDeclined}, stageOf("", r.String(), report.DecidedLocal))
	}
	for want, reasons := range map[Stage][]negotiate.Reason{
		StageNotOffered: {negotiate.ReasonPolicy, negotiate.ReasonMode, negotiate.ReasonAppLegBlocked, negotiate.ReasonNotWorthIt},
		StageNoAnswer:   {negotiate.ReasonPeerNoOption, negotiate.ReasonOptionBlackholed, negotiate.ReasonOfferUnanswered},
		StageDeclined:   {negotiate.ReasonVersion, negotiate.ReasonAcceptLost, negotiate.ReasonFlowLimit},
	} {
		for _, r := range reasons {
			require.Equal(t, want, stageOf("", r.String(), report.DecidedLocal), r)
		}
	}
	require.Equal(t, StageDeclined, stageOf("", "policy", report.DecidedRemote))
	require.Equal(t, StageDeclined, stageOf("", "mode", report.DecidedRemote))
	require.Equal(t, StageDeclined, stageOf("", "reason_99", report.DecidedRemote))
	require.Equal(t, StageRelayed, stageOf(report.CarrierRelay, "carrier_unreachable", report.DecidedLocal))
	require.Equal(t, StageCarried, stageOf(report.CarrierHW, "", ""))
}
