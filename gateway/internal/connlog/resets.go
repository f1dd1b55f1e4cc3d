package connlog

import (
	"log/slog"

	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/negotiate"
)

// resets logs that carried connections were reset by something other than an application: a line per second for each
// reason, with the details of the first. The zero value is ready to use.
type resets struct{ gathered[resetKey] }

// resetKey is what resets are grouped by.
type resetKey struct{ reason, decidedBy string }

// note is called for each connection that has ended.
func (l *resets) note(log *slog.Logger, info report.ConnInfo) {
	if info.Proto == string(report.ProtoUDP) || info.Carrier == report.CarrierNone || info.End != report.EndAborted || info.Reason == negotiate.ReasonAppReset.String() {
		return
	}
	key, peer, id := resetKey{info.Reason, info.DecidedBy}, info.Remote.Addr(), info.ID // info must not escape
	l.add(key, func(count int) {
		log.Warn("carried connections reset", "count", count, "reason", key.reason, "decided_by", key.decidedBy, "peer", peer, "flow_id", id)
	})
}
