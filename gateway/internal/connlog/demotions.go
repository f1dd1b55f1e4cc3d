package connlog

import (
	"log/slog"
	"sync"
	"time"

	"github.com/smcgw/smcgw/gateway/admin"
	"github.com/smcgw/smcgw/gateway/config"
)

// demotionPause is for how long demotions are gathered into one line: a device takes all
// of its connections with it.
const demotionPause = time.Second

// demotions says that connections have left their carriers, once for all that do so at a
// time. The zero value is ready to use.
type demotions struct {
	mu    sync.Mutex // guards everything below
	count int        // since the last line; 0: no line is due
}

// note is called for each connection that leaves a carrier; the line is about the first.
func (l *demotions) note(log *slog.Logger, info admin.ConnInfo, from config.Carrier, cause string, failure error) {
	log.Debug("connection goes on over the relay", "flow_id", info.ID, "local", info.Local, "remote", info.Remote,
		"carrier", from, "reason", cause, "error", failure)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.count++; l.count > 1 {
		return
	}
	time.AfterFunc(demotionPause, func() {
		l.mu.Lock()
		n := l.count
		l.count = 0
		l.mu.Unlock()
		log.Warn("connections go on over the relay", "count", n, "carrier", from, "reason", cause, "peer", info.Remote.Addr(), "error", failure)
	})
}
