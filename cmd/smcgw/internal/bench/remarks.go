package bench

import (
	"fmt"
	"strings"
)

// remarks collects, over the rounds of a task done one way, what a reader of its rows must know.
type remarks struct {
	looked, other int    // connections looked up; those not carried as claimed
	reason        string // reason of the first of those
	made, failed  int    // connections made, and failed, by a rate
	note          string // of the last run that had one
	failure       string // of the last run that failed
}

func (r *remarks) add(m measured, how carriage) {
	r.looked += how.as + how.other
	r.other += how.other
	if r.reason == "" {
		r.reason = how.reason
	}
	if m.note != "" {
		r.note = m.note
	}
	r.made += m.count
	r.failed += m.failed
}

// String returns the remarks, or "" if there are none.
func (r *remarks) String() string {
	var list []string
	if r.other > 0 {
		list = append(list, fmt.Sprintf("fallback: %s (%d of %d connections looked up)", r.reason, r.other, r.looked))
	}
	if r.failed > 0 {
		list = append(list, fmt.Sprintf("%d of %d connections failed", r.failed, r.made+r.failed))
	}
	if r.note != "" {
		list = append(list, r.note)
	}
	if r.failure != "" {
		list = append(list, r.failure)
	}
	return strings.Join(list, "; ")
}
