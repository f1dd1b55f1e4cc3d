package connlog

import (
	"log/slog"

	"github.com/smcgw/smcgw/gateway/report"
)

// demotions logs that connections have left their carriers: a line per second for each carrier and cause, with the
// details of the first. The zero value is ready to use.
type demotions struct{ gathered[demotionKey] }

// demotionKey is what demotions are grouped by.
type demotionKey struct {
	from  report.Carrier
	cause string
}

// note is called for each connection that leaves a carrier.
func (l *demotions) note(log *slog.Logger, info report.ConnInfo, from report.Carrier, cause string, failure error) {
	log.Debug("connection goes on over the relay", "flow_id", info.ID, "local", info.Local, "remote", info.Remote,
		"carrier", from, "reason", cause, "error", failure)
	l.add(demotionKey{from, cause}, func(count int) {
		log.Warn("connections go on over the relay", "count", count, "carrier", from, "reason", cause, "peer", info.Remote.Addr(), "error", failure)
	})
}
