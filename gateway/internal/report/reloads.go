package report

import (
	"fmt"
	"sync"
	"time"

	"github.com/smcgw/smcgw/gateway/admin"
)

// configRefused is what the gateway is degraded by while the file is another than what is
// in force.
const configRefused = "config_refused"

// Reloads are the attempts to read the configuration again. The zero value is ready to
// use.
type Reloads struct {
	mu            sync.Mutex // guards everything below
	done, refused uint64
	err           error // of the last; nil: it is in force
	at            time.Time
}

// Note is called for each attempt.
func (r *Reloads) Note(err error, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.err, r.at = err, now
	if err == nil {
		r.done++
	} else {
		r.refused++
	}
}

// Tell adds a refusal to the status until a reload succeeds.
func (r *Reloads) Tell(st *admin.Status) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err == nil {
		return
	}
	st.Degraded = append(st.Degraded, configRefused)
	st.Notes = append(st.Notes, fmt.Sprintf("configuration: refused at %s, the one before stays in force: %v; correct it (smcgw check) and reload",
		r.at.Format(time.RFC3339), r.err))
}

// AddTo copies the counters.
func (r *Reloads) AddTo(s *admin.Snapshot) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s.Reloads = map[string]uint64{"done": r.done, "refused": r.refused}
}
