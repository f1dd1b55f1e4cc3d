package gateway

import (
	"fmt"
	"sync"
	"time"

	"github.com/smcgw/smcgw/gateway/admin"
)

// reloads are the attempts to read the configuration again. The zero value is ready to
// use.
type reloads struct {
	mu            sync.Mutex // guards everything below
	done, refused uint64
	err           error // of the last; nil: it is in force
	at            time.Time
}

// note is called for each attempt.
func (r *reloads) note(err error, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.err, r.at = err, now
	if err == nil {
		r.done++
	} else {
		r.refused++
	}
}

// tell adds a refusal to the status until a reload succeeds.
func (r *reloads) tell(st *admin.Status) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err == nil {
		return
	}
	st.Degraded = append(st.Degraded, admin.ConfigRefused)
	st.Notes = append(st.Notes, fmt.Sprintf("configuration: refused at %s, the one before stays in force: %v; correct it (smcgw check) and reload",
		r.at.Format(time.RFC3339), r.err))
}

// addTo copies the counters.
func (r *reloads) addTo(s *admin.Snapshot) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s.Reloads = map[string]uint64{"done": r.done, "refused": r.refused}
}
