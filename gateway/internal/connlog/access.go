package connlog

import (
	"log/slog"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/report"
)

// access is the access log: a line when a connection begins to be carried, and one when it ends, up to accessLimit a
// second. Lines above it are counted, and one line tells the number of a second. The zero value writes nothing.
type access struct {
	setting atomic.Pointer[setting]
	leftOut atomic.Uint64      // lines above the limit
	untold  gathered[struct{}] // of these, the ones not yet reported
}

// accessLimit is the most lines per second.
const accessLimit = 100

// setting is what the configuration says.
type setting struct {
	which config.AccessLog
	limit *rate.Limiter
}

func (a *access) configure(c config.Log) {
	a.setting.Store(&setting{c.Access, rate.NewLimiter(accessLimit, accessLimit)})
}

// wants reports whether connections of this kind get lines.
func (a *access) wants(kind config.AccessLog) bool {
	s := a.setting.Load()
	return s != nil && (s.which == kind || s.which == config.AccessAll)
}

func (a *access) opened(log *slog.Logger, info report.ConnInfo) {
	a.write(log, "connection opened", info, "carrier", info.Carrier, "setup", duration(info))
}

func (a *access) complete(log *slog.Logger, info report.ConnInfo) {
	a.write(log, "connection complete", info, "carrier", info.Carrier, "tx_bytes", info.TxBytes, "rx_bytes", info.RxBytes,
		"duration", duration(info), "end", string(info.End), "reason", info.Reason, "decided_by", info.DecidedBy, "demoted", info.Demoted)
}

func (a *access) native(log *slog.Logger, info report.ConnInfo) {
	a.write(log, "connection native", info, "reason", info.Reason, "decided_by", info.DecidedBy)
}

// write writes a line, beginning with the attributes that all lines share. src is the address that began the
// connection.
func (a *access) write(log *slog.Logger, msg string, info report.ConnInfo, args ...any) {
	if !a.setting.Load().limit.Allow() {
		a.leaveOut(log)
		return
	}
	src, dst := info.Local, info.Remote
	if info.Side == report.SideServer {
		src, dst = dst, src
	}
	log.Info(msg, append([]any{"flow_id", info.ID, "proto", info.Proto, "side", info.Side, "src", src, "dst", dst}, args...)...) //nolint:sloglint // callers pass constants
}

// leaveOut counts a line that is not written.
func (a *access) leaveOut(log *slog.Logger) {
	a.leftOut.Add(1)
	a.untold.add(struct{}{}, func(count int) { log.Warn("lines of the access log left out: too many in a second", "count", count) })
}

// duration returns the age of a connection, to the microsecond.
func duration(info report.ConnInfo) time.Duration {
	return time.Duration(info.AgeSeconds * float64(time.Second)).Round(time.Microsecond)
}
