package interop

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/lab/apps"
)

// clockJumps are changes of the guest's clock, as date(1) takes them: what administrators, bad batteries and NTP
// after a long sleep do to clocks.
var clockJumps = []string{
	"+1 second", "-1 second", "+1 hour", "-1 hour", "+1 day", "-30 days", "+10 years", "@100000", "2106-02-07 06:28:15",
	"2026-01-01", "-1 minute", "+1 minute",
}

// lateTries is how often all of it is done again where a machine was late: on a busy one that proves nothing about
// clocks.
const lateTries = 2

// TestFaultClock makes the clock of one of two machines jump back and forth repeatedly while applications connect,
// talk and rest. None may notice, everything must be carried, and nothing may be given up too early or too late.
func TestFaultClock(t *testing.T) {
	m := newMachines(t, false)
	ctx := patience(t, 8*time.Minute)
	for try := 0; ; try++ {
		before, began := m.both(t), time.Now()
		after, flows, bytes := m.clockJumps(ctx, t)
		took := time.Since(began).Seconds()
		if try < lateTries && (late(before[0], after[0]) || late(before[1], after[1])) {
			t.Logf("a machine was late; fallbacks of the host %v, of the guest %v", after[0].FallbacksTotal, after[1].FallbacksTotal)
			_, err := m.admin.FlushPeers(ctx)
			require.NoError(t, err)
			m.inGuestRun(t, guestProgram, "peers", "flush", "--socket", "/run/admin.sock")
			continue
		}
		for i, name := range []string{"host", "guest"} {
			s := after[i]
			carried := s.FlowsTotal[report.CarrierSoft] - before[i].FlowsTotal[report.CarrierSoft]
			require.EqualValues(t, flows, carried, "%s: %+v; fallbacks of the host %v, of the guest %v", name, s, after[0].FallbacksTotal, after[1].FallbacksTotal)
			require.EqualValues(t, resting, s.Flows[report.CarrierSoft], name)
			require.Empty(t, s.Degraded, name)
			ran := s.UptimeSeconds - before[i].UptimeSeconds
			require.Greater(t, ran, took/2, name)
			require.Less(t, ran, 2*took+60, name)
		}
		t.Logf("flows=%d bytes=%d faults=%d errors=0", flows, bytes, len(clockJumps))
		return
	}
}

// late tells from what a gateway has counted whether a machine was late: programs found no heartbeat, an offer no
// answer, or a connection was relayed since its queue pair had none.
func late(before, after report.Status) bool {
	for _, reason := range []string{"gateway_stale", "offer_unanswered"} {
		if after.FallbacksTotal[reason] > before.FallbacksTotal[reason] {
			return true
		}
	}
	return after.Flows[report.CarrierRelay] > 0 || after.FlowsTotal[report.CarrierRelay] > before.FlowsTotal[report.CarrierRelay]
}

// resting is the number of connections that rest between jumps.
const resting = 4

// clockJumps makes the clock jump while applications run. It returns what both gateways tell while only the resting
// connections are left, how many there were, and their bytes.
func (m *machines) clockJumps(ctx context.Context, t *testing.T) (after []report.Status, flows int, bytes int64) {
	t.Helper()
	began := time.Now()
	rests, err := m.host.StartApp("hold", "-to", at(m.guest.Addr4, echoPort), "-count", fmt.Sprint(resting), "-patience", "1m")
	require.NoError(t, err)
	e, err := rests.Ask(ctx, "connect")
	require.NoError(t, err)
	require.Equal(t, resting, e.OK)

	// From the guest: one connection that talks, and many short ones.
	talks := m.start(t, appInGuest("ping", "-to", at(m.host.Addr6, echoPort), "-count", "100", "-gap", "50ms")...)
	short := m.start(t, appInGuest("churn", "-to", at(m.host.Addr4, transferPort), "-count", "60", "-size", "100000", "-parallel", "2", "-gap", "50ms")...)
	var bulk apps.Event
	var all sync.WaitGroup
	defer all.Wait()
	all.Go(func() {
		bulk, err = m.host.RunApp(ctx, "transfer", "-to", at(m.guest.Addr6, transferPort), "-up", fmt.Sprint(16<<20), "-down", fmt.Sprint(16<<20))
	})
	for _, jump := range clockJumps {
		_, err := m.guest.Run(ctx, "date", "-u", "-s", jump)
		require.NoError(t, err)
		time.Sleep(300 * time.Millisecond)
		e, err := rests.Ask(ctx, "ping")
		require.NoError(t, err)
		require.Equal(t, resting, e.OK, "after %s: %+v", jump, e)
		t.Logf("%v: %s", time.Since(began).Round(time.Millisecond), jump)
	}
	all.Wait()
	require.NoError(t, err)
	for _, e := range []apps.Event{bulk, result(ctx, t, talks), result(ctx, t, short)} {
		require.Zero(t, e.Failed, "%+v", e)
		bytes += e.Sent + e.Received
	}
	require.Eventually(t, func() bool { // the last ones may still be closing
		after = m.both(t)
		for _, s := range after {
			if s.Flows[report.CarrierSoft]+s.Flows[report.CarrierRelay] > resting {
				return false
			}
		}
		return true
	}, time.Minute, 100*time.Millisecond)
	require.NoError(t, rests.CloseInput())
	require.NoError(t, rests.Wait())
	return after, resting + 1 + 1 + 60, bytes
}
