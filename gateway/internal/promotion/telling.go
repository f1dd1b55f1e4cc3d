package promotion

import (
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/inprocess"
	"github.com/smcgw/smcgw/inprocess/broker"
)

// telling reports what happens to connections, and keeps those that have ended.
type telling struct {
	rules atomic.Pointer[rules]     // in force
	past  atomic.Pointer[pastConns] // nil: not reported

	mu       sync.Mutex // guards everything below
	promoted map[string]uint64
}

// pastConns are the latest promoted ends that have ended, or went back for good.
type pastConns struct {
	feed           *report.Feed
	closed, native *report.History
}

// Report makes a feed receive what happens to connections from now on.
func (s *Service) Report(f *report.Feed) {
	if s == nil {
		return
	}
	s.told.past.CompareAndSwap(nil, &pastConns{f, report.NewHistory(report.HistorySize, f), report.NewHistory(report.HistorySize, f)})
}

// Promoted returns by rule name how many connections were promoted or, in mode observe, would have been.
func (s *Service) Promoted() map[string]uint64 {
	if s == nil {
		return nil
	}
	s.told.mu.Lock()
	defer s.told.mu.Unlock()
	return maps.Clone(s.told.promoted)
}

func (t *telling) count(rule string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.promoted == nil {
		t.promoted = map[string]uint64{}
	}
	t.promoted[rule]++
}

// tell is the broker's Config.Tell. It must not block.
func (s *Service) tell(what broker.Told, e broker.End, why inprocess.Why) {
	if r := s.told.rules.Load(); r != nil && what == broker.ToldPromoted && (e.Side == 0 || e.Carrier != "") { // count one end of those that both ask here
		s.told.count(r.name(broker.Question{Process: e.Process, Socket: e.Socket}))
	}
	past := s.told.past.Load()
	if past == nil {
		return
	}
	switch what {
	case broker.ToldPromoted:
		if past.feed.Watched() {
			e.Report.State = inprocess.StatePromoted
			past.feed.Tell(report.EventPromoted, describe(&e, true, false, time.Now()))
		}
	case broker.ToldEnded:
		past.ended(&e, why)
	case broker.ToldDenied:
		if past.feed.Watched() && e.Socket.Local.IsValid() {
			past.feed.Tell(report.EventNative, describeNative(&e, why, time.Now()))
		}
	}
}

// ended records an end that was promoted.
func (p *pastConns) ended(e *broker.End, why inprocess.Why) {
	now := time.Now()
	switch why {
	case inprocess.WhyNone, inprocess.WhyProtocol:
	default: // the connection goes on
		p.native.Add(describeNative(e, why, now))
		return
	}
	e.Report.State, e.Report.Why = inprocess.StatePromoted, inprocess.WhyNone
	i := describe(e, true, false, now)
	i.State, i.End, i.EndedAt = "closed", report.EndClosed, now.UTC()
	if why != inprocess.WhyNone {
		i.End, i.Reason, i.DecidedBy = report.EndAborted, why.String(), report.DecidedLocal
	}
	p.closed.Add(i)
}

func describeNative(e *broker.End, why inprocess.Why, now time.Time) report.ConnInfo {
	e.Report.State, e.Report.Why = inprocess.StateNever, why
	i := describe(e, false, false, now)
	i.EndedAt = now.UTC()
	return i
}
