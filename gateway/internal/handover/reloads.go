package handover

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/report"
)

// Reloads records the attempts to read the configuration again. The zero value is ready to use.
type Reloads struct {
	mu            sync.Mutex // guards everything below
	done, refused uint64
	err           error // of the latest; nil: it is in force
	at            time.Time
}

// Note records an attempt.
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

// Tell adds the latest refusal to the status, until a reload succeeds.
func (r *Reloads) Tell(st *report.Status) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err == nil {
		return
	}
	st.Degraded = append(st.Degraded, report.ConfigRefused)
	remedy := "correct it (smcgw check) and reload"
	switch {
	case errors.Is(r.err, config.ErrStop):
		remedy = "a stop and a start put it in force"
	case errors.Is(r.err, config.ErrRestart):
		remedy = "smcgw reload, or a restart, puts it in force"
	case errors.Is(r.err, ErrUnderWay):
		remedy = "reload when that is over"
	}
	st.Notes = append(st.Notes, fmt.Sprintf("configuration: refused at %s, the one before stays in force: %s; %s",
		r.at.Format(time.RFC3339), strings.ReplaceAll(r.err.Error(), "\n", "; "), remedy))
}

// AddTo adds the counters to a snapshot.
func (r *Reloads) AddTo(s *report.Snapshot) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s.Reloads = map[string]uint64{"done": r.done, "refused": r.refused}
}
