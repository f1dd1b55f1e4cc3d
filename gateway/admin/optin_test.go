package admin

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// An opt-in counts before the client goes on, until the client ends it or is gone.
func TestOptIn(t *testing.T) {
	a := startAdmin(t, nil)
	opted := func() []OptIn {
		a.ctl.mu.Lock()
		defer a.ctl.mu.Unlock()
		return a.ctl.optedIn
	}
	h, err := a.client.OptIn(t.Context(), OptIn{Cgroup: "/a", ID: 7})
	require.NoError(t, err)
	require.Equal(t, []OptIn{{"/a", 7}}, opted())
	h.Close()
	require.Eventually(t, func() bool { return len(opted()) == 0 }, 30*time.Second, time.Millisecond)

	_, err = a.client.OptIn(t.Context(), OptIn{Cgroup: "/a"})
	require.EqualError(t, err, "answer of the daemon: opt-in: no such cgroup")
	h, err = a.client.OptIn(t.Context(), OptIn{Cgroup: "/a", ID: 7})
	require.NoError(t, err)
	a.stop()
	<-h.Done()
	_, err = a.client.OptIn(t.Context(), OptIn{Cgroup: "/a", ID: 7})
	require.ErrorIs(t, err, ErrDaemonUnreachable)
}
