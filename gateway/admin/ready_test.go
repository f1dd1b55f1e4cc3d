package admin

import (
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/report"
)

func TestReadiness(t *testing.T) {
	now := time.Now()
	fine := report.Snapshot{Mode: report.ModeEnforce, Heartbeat: now.Add(-time.Second)}
	for _, c := range []struct {
		name          string
		change        func(s *report.Snapshot)
		ready, strict bool
		says          string
	}{
		{"fine", func(*report.Snapshot) {}, true, true, "ready\nmode enforce\n"},
		{"degraded", func(s *report.Snapshot) { s.Degraded = []string{"device_failed", "address"} }, true, false, "degraded device_failed address\n"},
		{"off", func(s *report.Snapshot) { s.Mode = report.ModeOff }, true, false, "mode off\n"},
		{"observes", func(s *report.Snapshot) { s.Mode = report.ModeObserve }, true, false, "mode observe\n"},
		{"drains", func(s *report.Snapshot) { s.Draining = true }, false, false, "not ready\nthe gateway drains"},
		{"late", func(s *report.Snapshot) { s.Heartbeat = now.Add(-4 * time.Second) }, false, false, "not ready\nthe datapath does not beat"},
		{"starts", func(s *report.Snapshot) { s.Heartbeat = time.Time{} }, false, false, "the datapath does not beat"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := fine
			c.change(&s)
			text, ready := readiness(&s, now, false)
			require.Equal(t, c.ready, ready, text)
			require.Contains(t, text, c.says)
			text, ready = readiness(&s, now, true)
			require.Equal(t, c.strict, ready, text)
		})
	}
}

// Liveness and readiness are answered on the admin socket, too.
func TestProbesOnTheSocket(t *testing.T) {
	a := startAdmin(t, nil)
	for path, code := range map[string]int{"/healthz": http.StatusOK, "/readyz": http.StatusOK, "/readyz?strict=1": http.StatusServiceUnavailable} {
		require.Equal(t, code, rawGet(t, a, "GET", path, nil).StatusCode, path)
	}
}
