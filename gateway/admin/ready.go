package admin

import (
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/smcgw/smcgw/gateway/report"
)

// readyBeat is the age of a heartbeat at which new connections have been native for long
// enough to say so.
const readyBeat = 3 * time.Second

// getLive answers as long as the process does: a supervisor that ends a gateway for
// anything less resets what it carries.
func getLive(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("ok\n")) }

// getReady tells whether the gateway does what it is there for: it beats, and takes new
// connections. One that is off, observes or is degraded is ready, since all of its host's
// connections work; with strict=1 it is not.
func (s *Server) getReady(w http.ResponseWriter, r *http.Request) {
	t := s.src.Totals()
	text, ready := readiness(&t, time.Now(), r.URL.Query().Get("strict") == "1")
	if !ready {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	_, _ = w.Write([]byte(text))
}

// readiness is the answer: the verdict, and a line for what an operator should know.
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
