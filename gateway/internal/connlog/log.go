package connlog

import (
	"log/slog"

	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/report"
)

// Log writes lines about the connections of one gateway. It is safe for concurrent use and never waits for the log's
// reader.
type Log struct {
	log       *slog.Logger
	access    access
	resets    resets
	demotions demotions
}

// New returns a log that writes to l, as c says.
func New(l *slog.Logger, c config.Log) *Log {
	lines := &Log{log: l}
	lines.Configure(c)
	return lines
}

// Configure changes which connections the access log has.
func (l *Log) Configure(c config.Log) { l.access.configure(c) }

// Carried is called for each connection that begins to be carried.
func (l *Log) Carried(info func() report.ConnInfo) {
	if l.access.wants(config.AccessCarried) {
		l.access.opened(l.log, info())
	}
}

// Ended is called for each connection of the gateway that has ended, carried or not.
func (l *Log) Ended(info report.ConnInfo) {
	l.resets.note(l.log, info)
	switch {
	case info.Carrier != report.CarrierNone:
		if l.access.wants(config.AccessCarried) {
			l.access.complete(l.log, info)
		}
	case info.End == report.EndNative:
		l.Native(info)
	}
}

// Native is called for each connection that stays native by a decision of the programs.
func (l *Log) Native(info report.ConnInfo) {
	if l.WantsNative() {
		l.access.native(l.log, info)
	}
}

// WantsNative reports whether connections that stay native get lines.
func (l *Log) WantsNative() bool { return l.access.wants(config.AccessAll) }

// Missed is called when the programs could not report n native connections since they came too fast.
func (l *Log) Missed(n uint64) {
	if n > 0 && l.WantsNative() {
		l.log.Warn("native connections missing in the access log: they came too fast", "count", n)
	}
}

// Demoted is called for each connection that leaves a carrier because of cause. failure is the error of its queue pair,
// nil if there was none.
func (l *Log) Demoted(info report.ConnInfo, from report.Carrier, cause string, failure error) {
	l.demotions.note(l.log, info, from, cause, failure)
}

// LeftOut returns how many lines of the access log were above its limit.
func (l *Log) LeftOut() uint64 { return l.access.leftOut.Load() }

// Flush writes all lines that wait.
func (l *Log) Flush() {
	l.resets.flush()
	l.demotions.flush()
	l.access.untold.flush()
}
