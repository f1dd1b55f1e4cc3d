package interop

import (
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

// TestFaultClock makes the clock of one of two machines jump back and forth repeatedly while applications connect,
// talk and rest. None may notice, everything must be carried, and nothing may be given up too early or too late.
func TestFaultClock(t *testing.T) {
	m := newMachines(t, false)
	ctx := patience(t, 5*time.Minute)
	began := time.Now()

	resting, err := m.host.StartApp("hold", "-to", at(m.guest.Addr4, echoPort), "-count", "4", "-patience", "1m")
	require.NoError(t, err)
	e, err := resting.Ask(ctx, "connect")
	require.NoError(t, err)
	require.Equal(t, 4, e.OK)

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
		e, err := resting.Ask(ctx, "ping")
		require.NoError(t, err)
		require.Equal(t, 4, e.OK, "after %s: %+v", jump, e)
		t.Logf("%v: %s", time.Since(began).Round(time.Millisecond), jump)
	}
	all.Wait()
	require.NoError(t, err)
	flows, bytes := 4, int64(0)
	for _, e := range []apps.Event{bulk, m.result(ctx, t, talks), m.result(ctx, t, short)} {
		require.Zero(t, e.Failed, "%+v", e)
		bytes += e.Sent + e.Received
	}
	flows += 1 + 1 + 60
	var host, inGuest report.Status
	require.Eventually(t, func() bool { // the last ones may still be closing
		host, inGuest = m.status(ctx, t)
		return host.Flows[report.CarrierSoft] == 4 && inGuest.Flows[report.CarrierSoft] == 4
	}, 20*time.Second, 100*time.Millisecond)
	for name, s := range map[string]report.Status{"host": host, "guest": inGuest} {
		require.EqualValues(t, flows, s.FlowsTotal[report.CarrierSoft], "%s: %+v; fallbacks of the host %v, of the guest %v", name, s, host.FallbacksTotal, inGuest.FallbacksTotal)
		require.Empty(t, s.Degraded, name)
		require.Greater(t, s.UptimeSeconds, time.Since(began).Seconds()/2, name)
		require.Less(t, s.UptimeSeconds, 2*time.Since(began).Seconds()+60, name)
	}
	require.NoError(t, resting.CloseInput())
	require.NoError(t, resting.Wait())
	t.Logf("flows=%d bytes=%d faults=%d errors=0", flows, bytes, len(clockJumps))
}
