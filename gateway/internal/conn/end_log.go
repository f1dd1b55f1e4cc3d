package conn

import (
	"log/slog"
	"sync"
	"time"

	"github.com/smcgw/smcgw/gateway/admin"
	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/negotiate"
)

// endPause is for how long connections that are reset are gathered into one line of the
// log: what ends one often ends all of a peer.
const endPause = time.Second

// endLog says in the log that carried connections were reset by something else than an
// application: a line a second for each reason, about the first of them. The zero value is
// ready to use.
type endLog struct {
	mu      sync.Mutex // guards everything below
	pending map[endKey]*endLine
}

// endKey is what has a line of its own.
type endKey struct{ reason, decidedBy string }

// endLine is a line that is due.
type endLine struct {
	log   *slog.Logger
	timer *time.Timer
	first admin.ConnInfo
	count int
}

// note is called for each flow that has ended.
func (l *endLog) note(log *slog.Logger, info admin.ConnInfo) {
	if info.Carrier == config.CarrierNone || info.End != admin.EndAborted || info.Reason == negotiate.ReasonAppReset.String() {
		return
	}
	key := endKey{info.Reason, info.DecidedBy}
	l.mu.Lock()
	defer l.mu.Unlock()
	if line := l.pending[key]; line != nil {
		line.count++
		return
	}
	if l.pending == nil {
		l.pending = map[endKey]*endLine{}
	}
	l.pending[key] = &endLine{
		log: log, first: info, count: 1,
		timer: time.AfterFunc(endPause, func() { l.write(key) }),
	}
}

func (l *endLog) write(key endKey) {
	l.mu.Lock()
	line := l.pending[key]
	delete(l.pending, key)
	l.mu.Unlock()
	if line != nil {
		line.log.Warn("carried connections reset", "count", line.count, "reason", key.reason, "decided_by", key.decidedBy,
			"peer", line.first.Remote.Addr(), "flow_id", line.first.ID)
	}
}

// flush writes the lines that are due.
func (l *endLog) flush() {
	l.mu.Lock()
	var keys []endKey
	for key, line := range l.pending {
		line.timer.Stop()
		keys = append(keys, key)
	}
	l.mu.Unlock()
	for _, key := range keys {
		l.write(key)
	}
}

// Flush writes what is still to be said about connections that have ended.
func (e *Env) Flush() { e.ends.flush() }
