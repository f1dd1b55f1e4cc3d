package admin

import (
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/smcgw/smcgw/gateway/report"
)

// readyBeat is the age of the heartbeat at which the gateway is reported as not ready: new
// connections have been native for a while by then.
const readyBeat = 3 * time.Second

// getLive answers for as long as the process is alive: a supervisor that killed a gateway for
// anything less would reset what it carries.
func getLive(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("ok\n")) }

// getReady reports whether the gateway does its job: it beats and accepts new connections. A
// gateway that is off, observes or is degraded is ready, since all connections of its host
// work; with strict=1 it is not.
func (s *Server) getReady(w http.ResponseWriter, r *http.Request) {
	t := s.src.Totals()
	text, ready := readiness(&t, time.Now(), r.URL.Query().Get("strict") == "1")
	if !ready {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	_, _ = w.Write([]byte(text))
}

// readiness returns the answer: the verdict, and lines for what operators should know.
func readiness(t *report.Snapshot, now time.Time, strict bool) (text string, ready bool) {
	var b strings.Builder
	late := t.Heartbeat.IsZero() || now.Sub(t.Heartbeat) > readyBeat
	limited := len(t.Degraded) > 0 || t.Mode != report.ModeEnforce
	ready = !late && !t.Draining && (!strict || !limited)
	if ready {
		b.WriteString("ready\n")
	} else {
		b.WriteString("not ready\n")
	}
	if late {
		b.WriteString("the datapath does not beat: new connections are native\n")
	}
	if t.Draining {
		b.WriteString("the gateway drains: new connections are native\n")
	}
	fmt.Fprintf(&b, "mode %s\n", t.Mode)
	if len(t.Degraded) > 0 {
		fmt.Fprintf(&b, "degraded %s\n", strings.Join(t.Degraded, " "))
	}
	return b.String(), ready
}
