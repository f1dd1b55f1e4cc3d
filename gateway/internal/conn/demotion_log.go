package conn

import (
	"sync"
	"time"

	"github.com/smcgw/smcgw/gateway/config"
)

// demotionPause is for how long demotions are gathered into one line of the log:
// a device takes all of its connections with it.
const demotionPause = time.Second

// demotionLog says in the log that connections have left their carriers, once for
// all that do so at a time. The zero value is ready to use.
type demotionLog struct {
	mu    sync.Mutex // guards everything below
	count int        // since the last line; 0: no line is due
}

// note is called for each flow that leaves a carrier; the line is about the first.
func (l *demotionLog) note(c *carry, from config.Carrier, cause string) {
	log := c.f.env.Log
	log.Debug("connection goes on over the relay", "flow_id", c.f.ID, "carrier", from, "reason", cause, "error", c.failure)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.count++; l.count > 1 {
		return
	}
	peer, failure := c.f.Tuple.Remote.Addr(), c.failure
	time.AfterFunc(demotionPause, func() {
		l.mu.Lock()
		n := l.count
		l.count = 0
		l.mu.Unlock()
		log.Warn("connections go on over the relay", "count", n, "carrier", from, "reason", cause, "peer", peer, "error", failure)
	})
}
