package carrier

import (
	"strings"
	"sync"

	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/negotiate"
	"github.com/smcgw/smcgw/verbs"
)

// completionErrors counts the completions that end queue pairs. It ignores flushes: they
// follow the first error without adding information, and every queue pair ends with some. The
// zero value is ready to use.
type completionErrors struct {
	mu    sync.Mutex // guards counts
	count map[completionError]uint64
}

type completionError struct {
	kind   negotiate.CarrierKind
	status verbs.WCStatus
}

// note is called for every completion.
func (c *completionErrors) note(kind negotiate.CarrierKind, status verbs.WCStatus) {
	if status == verbs.WCSuccess || status == verbs.WCWRFlushErr {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.count == nil {
		c.count = map[completionError]uint64{}
	}
	c.count[completionError{kind, status}]++
}

// CQErrors returns the counts of completions that ended queue pairs.
func (e *Env) CQErrors() (list []report.CQErrorCount) {
	e.failed.mu.Lock()
	defer e.failed.mu.Unlock()
	for k, n := range e.failed.count {
		list = append(list, report.CQErrorCount{Carrier: report.Carrier(k.kind.String()), Status: strings.ToLower(k.status.String()), Count: n})
	}
	return list
}
