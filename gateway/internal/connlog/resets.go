package connlog

import (
	"log/slog"
	"sync"
	"time"

	"github.com/smcgw/smcgw/gateway/admin"
	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/negotiate"
)

// resetPause is for how long connections that are reset are gathered into one line: what
// ends one often ends all of a peer.
const resetPause = time.Second

// resets says that carried connections were reset by something else than an application: a
// line a second for each reason, about the first of them. The zero value is ready to use.
type resets struct {
	mu      sync.Mutex // guards everything below
	pending map[resetKey]*resetLine
}

// resetKey is what has a line of its own.
type resetKey struct{ reason, decidedBy string }

// resetLine is a line that is due.
type resetLine struct {
	log   *slog.Logger
	timer *time.Timer
	first admin.ConnInfo
	count int
}

// note is called for each connection that has ended.
func (l *resets) note(log *slog.Logger, info admin.ConnInfo) {
	if info.Proto == string(config.ProtoUDP) || info.Carrier == config.CarrierNone || info.End != admin.EndAborted || info.Reason == negotiate.ReasonAppReset.String() {
		return
	}
	key := resetKey{info.Reason, info.DecidedBy}
	l.mu.Lock()
	defer l.mu.Unlock()
	if line := l.pending[key]; line != nil {
		line.count++
		return
	}
	if l.pending == nil {
		l.pending = map[resetKey]*resetLine{}
	}
	l.pending[key] = &resetLine{
		log: log, first: info, count: 1,
		timer: time.AfterFunc(resetPause, func() { l.write(key) }),
	}
}

func (l *resets) write(key resetKey) {
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
func (l *resets) flush() {
	l.mu.Lock()
	var keys []resetKey
	for key, line := range l.pending {
		line.timer.Stop()
		keys = append(keys, key)
	}
	l.mu.Unlock()
	for _, key := range keys {
		l.write(key)
	}
}
