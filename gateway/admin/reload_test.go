package admin

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/internal/claim"
)

// fakeSuccessor is a gateway that the test has end, or take over.
type fakeSuccessor struct {
	ended    chan error
	released chan struct{}
	told     chan struct{} // to end
}

func newFakeSuccessor() *fakeSuccessor {
	return &fakeSuccessor{ended: make(chan error, 1), released: make(chan struct{}), told: make(chan struct{})}
}

func (f *fakeSuccessor) Ended() <-chan error { return f.ended }

func (f *fakeSuccessor) Release() { close(f.released) }

func (f *fakeSuccessor) End() { close(f.told) }

// A successor that is late, or whose gateway is to end, is not left running.
func TestSuccessorThatIsLate(t *testing.T) {
	for _, over := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			next, stop := newFakeSuccessor(), make(chan struct{})
			s := &Server{log: slog.New(slog.DiscardHandler), succession: claim.New(), over: stop}
			if over {
				close(stop)
			}
			require.Error(t, s.awaitSuccessor(next, time.Now().Add(successorLimit)))
			<-next.told
		})
	}
}

// slowStart takes its time to start a successor.
type slowStart struct {
	*fakeControl
	takes time.Duration
}

func (s slowStart) Renew(ctx context.Context, always bool) (Successor, error) {
	time.Sleep(s.takes)
	return s.fakeControl.Renew(ctx, always)
}

// A successor that is started late has what is left of the time for which the client waits.
func TestReloadEndsInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		next, ctl := newFakeSuccessor(), &fakeControl{}
		ctl.start(next)
		s := &Server{
			socket: &adminSocket{}, log: slog.New(slog.DiscardHandler), succession: claim.New(),
			ctl: slowStart{ctl, successorLimit - time.Second},
		}
		s.socket.aside.Store(true)
		begin, w := time.Now(), httptest.NewRecorder()
		s.postReload(w, httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/v1/reload", strings.NewReader(`{"replace":true}`)))
		require.Contains(t, w.Body.String(), errSuccessorLate.Error())
		require.Less(t, time.Since(begin), successorLimit+clientTimeout)
		<-next.told
	})
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

// A successor that ends changes nothing; one that takes over ends the wait, and the
// service manager is told of its process.
func TestAdminReplace(t *testing.T) {
	a := startTakenOver(t)
	a.ctl.neighbour = testNeighbour
	next := newFakeSuccessor()
	a.ctl.start(next)
	next.ended <- errors.New("no such file")
	_, err := a.client.Reload(t.Context(), true)
	require.ErrorContains(t, err, "no such file")
	<-next.told

	next = newFakeSuccessor()
	a.ctl.start(next)
	done := make(chan error, 1)
	go func() {
		_, err := a.client.Reload(t.Context(), true)
		done <- err
	}()
	require.Eventually(t, func() bool { return len(a.ctl.taken()) == 2 }, testPatience, time.Millisecond, "both successors are started")
	held, err := a.client.TakeOver(t.Context())
	require.NoError(t, err)
	defer held.Close()
	require.NoError(t, held.Yield(t.Context()))
	_, err = held.Leave(t.Context(), time.Second, 4711)
	require.NoError(t, err)
	require.NoError(t, <-done)
	<-next.released
	require.Equal(t, 4711, a.ctl.mainProcess())
	_, err = NewClient(a.cfg.Admin+".old").Reload(t.Context(), false)
	require.ErrorIs(t, err, errRefused, "one that drains stays as it is")
	a.beside = true
}

// The service manager ends no reload that is about to have an answer.
func TestServiceWaitsForReload(t *testing.T) {
	unit, err := os.ReadFile("../../packaging/systemd/smcgw.service")
	require.NoError(t, err)
	found := regexp.MustCompile(`(?m)^TimeoutStartSec=(\d+)$`).FindSubmatch(unit)
	require.NotNil(t, found, "the default is 90 s")
	seconds, err := strconv.Atoi(string(found[1]))
	require.NoError(t, err)
	require.Greater(t, time.Duration(seconds)*time.Second, successorLimit+clientTimeout)
}
