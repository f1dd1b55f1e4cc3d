package gateway

import (
	"bytes"
	"context"
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/ebpf"
	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/internal/peers"
	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/negotiate"
)

// seen is a connection of this host with port 7000 of the peer, or the port given.
func seen(id uint64, reason string, end report.End, at time.Time, port ...uint16) report.ConnInfo {
	to := netip.MustParseAddrPort("10.0.0.2:7000")
	if len(port) > 0 {
		to = netip.AddrPortFrom(to.Addr(), port[0])
	}
	return report.ConnInfo{
		ID: id, Proto: "tcp", Side: report.SideClient, Local: netip.MustParseAddrPort("10.0.0.1:40000"), Remote: to, Reason: reason, End: end, EndedAt: at,
	}
}

func TestFailing(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	past := func(s int) time.Time { return now.Add(-time.Duration(s) * time.Second) }
	type conns = []report.ConnInfo
	for _, c := range []struct {
		name                 string
		live, ended, natives conns
		note                 string // of the first note, a part; empty: there is no note
		state                report.PeerState
		reason               string
	}{
		{name: "nothing", state: report.PeerCapable},
		{
			name: "keys", natives: conns{seen(3, "auth_failed", report.EndNative, past(9)), seen(2, "auth_failed", report.EndNative, past(20))},
			note: "port 7000 of 10.0.0.2: the latest 2 connections stayed native, 9s ago: auth_failed. ", state: report.PeerCapable, reason: "auth_failed",
		},
		{
			name: "carried since", live: conns{seen(4, "", "", time.Time{})}, natives: conns{seen(3, "auth_failed", report.EndNative, past(9))}, state: report.PeerCapable,
		},
		{
			name: "own choice", natives: conns{seen(3, "rate_limit", report.EndNative, past(9)), seen(2, "policy", report.EndNative, past(9))}, state: report.PeerCapable,
		},
		{
			name: "stopped", ended: conns{seen(1, "", report.EndClosed, past(30))}, natives: conns{seen(2, "peer_no_option", report.EndNative, past(1))},
			note: "the latest connection stayed native, 1s ago: peer_no_option. It was carried before", state: report.PeerStopped, reason: "peer_no_option",
		},
		{
			name: "killed", ended: conns{seen(1, "wire_reset", report.EndAborted, past(3))},
			note: "the latest connection was reset, 3s ago: wire_reset", state: report.PeerStopped, reason: "wire_reset",
		},
		{
			name: "killed with several", ended: conns{seen(1, "wire_reset", report.EndAborted, past(3)), seen(2, "peer_dead", report.EndAborted, past(2))},
			natives: conns{seen(3, "handshake_timeout", report.EndNative, past(1))},
			note:    "of the latest 3 connections 1 stayed native, the others were reset, 1s ago", state: report.PeerStopped, reason: "handshake_timeout",
		},
		{
			name: "back since, for another service", live: conns{seen(4, "", "", time.Time{}, 80)}, ended: conns{seen(1, "wire_reset", report.EndAborted, past(3))},
			note: "was reset", state: report.PeerCapable,
		},
		{
			name: "another service", ended: conns{seen(1, "", report.EndClosed, past(30))}, natives: conns{seen(2, "peer_no_option", report.EndNative, past(1), 80)},
			note:  "port 80 of 10.0.0.2: the latest connection stayed native, 1s ago: peer_no_option. The gateway there carries other services",
			state: report.PeerCapable, reason: "peer_no_option",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := findFailing(c.live, c.ended, c.natives)
			notes := f.Notes(now)
			if c.note == "" {
				require.Empty(t, notes)
			} else {
				require.Len(t, notes, 1)
				require.Contains(t, notes[0], c.note)
			}
			list := []report.PeerInfo{{Address: netip.MustParseAddr("10.0.0.2"), State: report.PeerCapable}, {Address: netip.MustParseAddr("10.0.0.3"), State: report.PeerCapable}}
			f.Tell(list)
			require.Equal(t, c.state, list[0].State)
			require.Equal(t, c.reason, list[0].Reason)
			require.Equal(t, report.PeerInfo{Address: netip.MustParseAddr("10.0.0.3"), State: report.PeerCapable}, list[1])
		})
	}
}

// TestFailingNotesAreBounded: a host that scans, or a network that is down, does not fill the status.
func TestFailingNotesAreBounded(t *testing.T) {
	now := time.Now()
	var natives []report.ConnInfo
	for port := range uint16(40) {
		natives = append(natives, seen(uint64(port)+1, "auth_failed", report.EndNative, now, 7000+port))
	}
	notes := findFailing(nil, nil, natives).Notes(now)
	require.Len(t, notes, maxFailingNotes+1)
	require.Contains(t, notes[maxFailingNotes], "35 more services")
}

func TestIdleRules(t *testing.T) {
	rules := []report.RuleReport{
		{Name: "used", Action: report.ActionAccelerate, Selected: 1},
		{Name: "idle", Action: report.ActionAccelerate},
		{Name: "never", Action: report.ActionPass},
		{Name: "left", Action: report.ActionAccelerate, Passed: 1},
	}
	require.Empty(t, idleRules(rules, true, minRuleAge-time.Second))
	require.Empty(t, idleRules(rules, false, time.Hour), "programs with the library may be what they are for")
	notes := idleRules(rules, true, time.Hour)
	require.Len(t, notes, 1)
	require.Contains(t, notes[0], "rule idle has matched no connection in 1h0m0s")
}

// A host is listed once, with its carriers and what is remembered of it, and each of its
// ports beside it. One that only begins connections is listed, too.
func TestPeers(t *testing.T) {
	capable, blackholed, stranger := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("10.0.0.3")
	soft, now := []report.Carrier{report.CarrierSoft}, time.Now()
	failing := netip.MustParseAddr("10.0.0.5")
	table := peers.NewTable(config.Limits{})
	table.Proven(capable, report.CarrierShm)
	table.Proven(capable, report.CarrierSoft)
	for range 3 {
		table.Failed(capable, negotiate.CarrierSHM, now)
		table.Failed(failing, negotiate.CarrierSoft, now)
		now = now.Add(5 * time.Second)
	}
	list := listPeers(table.Known(now), []ebpf.Peer{
		{Addr: capable, Reason: uint8(negotiate.ReasonPeerDead), TTL: time.Second},
		{Addr: capable, Port: 80, Reason: uint8(negotiate.ReasonPeerRefused), TTL: time.Minute},
		{Addr: blackholed, Reason: uint8(negotiate.ReasonOptionBlackholed), TTL: time.Hour},
	}, map[netip.Addr]int{capable: 3}, map[netip.Addr]report.PeerUse{
		capable: {Begun: 2}, blackholed: {MemoryBytes: 7}, stranger: {Begun: 1}, netip.MustParseAddr("10.0.0.4"): {},
	})
	require.Equal(t, []report.PeerInfo{
		{Address: capable, State: report.PeerIncapable, Reason: "peer_dead", ExpiresSeconds: 1, Carriers: soft, CarriersFailed: []report.Carrier{report.CarrierShm}, Flows: 3, Use: report.PeerUse{Begun: 2}},
		{Address: capable, Port: 80, State: report.PeerIncapable, Reason: "peer_refused", ExpiresSeconds: 60},
		{Address: blackholed, State: report.PeerBlackholed, Reason: "option_blackholed", ExpiresSeconds: 3600, Use: report.PeerUse{MemoryBytes: 7}},
		{Address: stranger, State: report.PeerUnknown, Use: report.PeerUse{Begun: 1}},
		{Address: failing, State: report.PeerUnknown, CarriersFailed: soft},
	}, list)
}

func TestHealth(t *testing.T) {
	require.Equal(t, []report.BlockedLegs{{Device: "eth0", Family: "ipv6", At: "input"}, {At: "keeper"}},
		listBlockedLegs([]ebpf.BlockedLegs{{Device: "eth0", IPv6: true, Way: "input"}}, true))
}

// TestMissedNatives: events that the programs had no room for are told while native
// connections are, each once.
func TestMissedNatives(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := config.Config{Mode: report.ModeObserve, Log: config.Log{Access: config.AccessAll}}.WithDefaults()
		cfg.StateDir = t.TempDir()
		var text bytes.Buffer
		log := slog.New(slog.NewTextHandler(&text, nil))
		steer := newFakeSteering()
		g, err := newGateway(cfg, &site{localHost: localHost{Steering: steer, Beside: retiring{}}}, nil, log)
		require.NoError(t, err)
		t.Cleanup(g.close)
		lose := func(s *fakeSteering, total uint64) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.counters.Stats = map[string]uint64{"event_lost": total}
		}
		told := func() (counts []string) {
			for line := range strings.Lines(text.String()) {
				if _, n, ok := strings.Cut(line, "native connections missing in the access log: they came too fast\" count="); ok {
					counts = append(counts, strings.TrimSpace(n))
				}
			}
			text.Reset()
			return counts
		}
		work := func(g *gateway) {
			ctx, stop := context.WithTimeout(t.Context(), 3*chores+chores/2)
			defer stop()
			g.choreLoop(ctx)
		}
		lose(steer, 5)
		work(g)
		require.Equal(t, []string{"5"}, told())

		quiet := cfg
		quiet.Log.Access = config.AccessCarried
		lose(steer, 6)
		require.NoError(t, g.reload(quiet, nil))
		require.Equal(t, []string{"1"}, told(), "to the log as it was")
		lose(steer, 8)
		work(g)
		require.NoError(t, g.reload(cfg, nil))
		require.Empty(t, told())
	})
}
