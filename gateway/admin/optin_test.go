package admin

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/report"
)

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
