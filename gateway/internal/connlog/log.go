package connlog

import (
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/negotiate"
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

// gatherPause is how long a line waits for others of its kind: what fails on a host fails for thousands of connections
// at once.
const gatherPause = time.Second

// gathered writes one line for all connections of a second that share a key. It relies on the number of possible keys
// being small. The zero value is ready to use.
type gathered[K comparable] struct {
	mu      sync.Mutex // guards everything below
	pending map[K]*gatheredLine
}

type gatheredLine struct {
	timer *time.Timer
	count int
	write func(count int)
}

// add counts a connection. For the first of its key, write is kept, to write the line when it is due.
func (l *gathered[K]) add(key K, write func(count int)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if line := l.pending[key]; line != nil {
		line.count++
		return
	}
	if l.pending == nil {
		l.pending = map[K]*gatheredLine{}
	}
	l.pending[key] = &gatheredLine{count: 1, write: write, timer: time.AfterFunc(gatherPause, func() { l.due(key) })}
}

// due writes the line of a key, unless it has been written.
func (l *gathered[K]) due(key K) {
	l.mu.Lock()
	line := l.pending[key]
	delete(l.pending, key)
	l.mu.Unlock()
	if line != nil {
		line.write(line.count)
	}
}

// flush writes the lines that wait.
func (l *gathered[K]) flush() {
	l.mu.Lock()
	var keys []K
	for key, line := range l.pending {
		line.timer.Stop()
		keys = append(keys, key)
	}
	l.mu.Unlock()
	for _, key := range keys {
		l.due(key)
	}
}

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
