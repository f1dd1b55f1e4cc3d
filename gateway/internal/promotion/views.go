package promotion

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/inprocess"
	"github.com/smcgw/smcgw/inprocess/broker"
	"github.com/smcgw/smcgw/negotiate"
)

// idBase keeps the IDs of ends, which are made from socket cookies, apart from those of flows.
const idBase = 1 << 40

// Conns lists promoted ends and, if the query asks for them, ends that have asked, are native for good, or have ended.
func (s *Service) Conns(q report.ConnQuery) []report.ConnInfo {
	if s == nil {
		return nil
	}
	list := s.liveConns(q)
	listed := map[uint64]bool{}
	for i := range list {
		listed[list[i].ID] = true
	}
	for _, h := range s.told.past.asked(q) {
		list = append(list, slices.DeleteFunc(h.List(), func(i report.ConnInfo) bool {
			return h == s.told.past.native && listed[i.ID] || !q.Filter.Matches(&i)
		})...)
	}
	slices.SortFunc(list, func(a, b report.ConnInfo) int { return cmp.Compare(b.ID, a.ID) })
	return list
}

// liveConns returns those of Conns that still exist. An end that went back for good is among them as long as its
// program has it.
func (s *Service) liveConns(q report.ConnQuery) (list []report.ConnInfo) {
	b, off := s.broker()
	if b == nil {
		return nil
	}
	now := time.Now()
	for _, e := range b.Snapshot().Ends {
		promoted := e.Report.State == inprocess.StatePromoted && !off && e.SentBack == inprocess.WhyNone
		if promoted && !q.Live() || !promoted && !q.Natives() {
			continue
		}
		if i := describe(&e, promoted, off, now); q.Filter.Matches(&i) {
			list = append(list, i)
		}
	}
	return list
}

// asked returns the histories that the query asks for.
func (p *pastConns) asked(q report.ConnQuery) (list []*report.History) {
	if q.Ended() {
		list = append(list, p.closed)
	}
	if q.Natives() {
		list = append(list, p.native)
	}
	return list
}

// broker returns the serving broker, or nil. If off, libraries send by the kernel.
func (s *Service) broker() (b *broker.Broker, off bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.now, s.mode == report.ModeOff
}

// describe converts an end for operators. A promoted end that sends by the kernel for now, because of the switch or the
// path, is described as native with that reason; it may be promoted again.
func describe(e *broker.End, promoted, off bool, now time.Time) report.ConnInfo {
	r := &e.Report
	i := report.ConnInfo{
		ID: idBase | e.Socket.Cookie, Proto: string(report.ProtoTCP), Side: sideOf(e.Socket.Role), Local: e.Socket.Local, Remote: e.Socket.Remote,
		State: r.State.String(), Way: report.WayNative, TxBytes: r.TxRing + r.TxKernel, RxBytes: r.RxRing + r.RxKernel,
		Program: &report.Program{Name: e.Process.Name, PID: e.Process.PID, UID: e.Process.UID, Cgroup: e.Process.Cgroup},
		InProcess: &report.InProcessEnd{
			Conn: e.ID, TxRing: r.TxRing, RxRing: r.RxRing, TxSpilled: r.TxKernel, RxSpilled: r.RxKernel, TxTokens: r.TokensTx, RxTokens: r.TokensRx,
			Spills: r.Spills, Returns: r.Returns, ResidentBytes: max(e.Resident, 0),
		},
	}
	switch {
	case promoted:
		i.Way, i.Carrier = report.WayInProcess, report.Carrier(e.Carrier)
	case r.State == inprocess.StatePromoted && off:
		i.Reason, i.DecidedBy = inprocess.WhyOff.String(), report.DecidedLocal
	case r.State == inprocess.StatePromoted:
		i.Reason, i.DecidedBy = e.SentBack.String(), report.DecidedLocal
	case e.Cause.Tells(r.Why), e.Cause.Number != 0 && r.State == inprocess.StateAsked:
		i.Reason, i.DecidedBy = negotiate.Reason(e.Cause.Number).String(), report.DecidedBy(e.Cause.Remote)
	case r.Why != inprocess.WhyNone:
		i.Reason, i.DecidedBy = r.Why.String(), report.DecidedLocal
	}
	if r.State == inprocess.StateNever {
		i.State, i.End = "native", report.EndNative
	}
	if !e.Since.IsZero() {
		i.AgeSeconds = now.Sub(e.Since).Seconds()
	}
	return i
}

func sideOf(r broker.Role) report.Side {
	if r == broker.RoleServer {
		return report.SideServer
	}
	return report.SideClient
}

// Totals returns the service's counters. With whole they include what live connections have moved, which must be read
// from the memory of each.
func (s *Service) Totals(whole bool) report.InProcess {
	if s == nil {
		return report.InProcess{Native: map[string]uint64{}}
	}
	s.mu.Lock()
	b, past := s.now, s.past
	s.mu.Unlock()
	out := report.InProcess{Enabled: true, Native: map[string]uint64{}, Predicted: s.seen.count()}
	if err := s.Serving(); err != nil {
		out.Note = err.Error()
	} else {
		out.Serving = true
	}
	var c broker.Counters
	var live uint64
	switch {
	case b == nil:
	case whole:
		snap := b.Snapshot()
		c, live = snap.Counters, snap.RingBytes()
	default:
		c = b.Counters()
	}
	c.Add(&past)
	out.Processes, out.Waiting, out.Connections, out.ConnectionsTotal, out.MemoryBytes = c.Processes, c.Waiting, c.Conns, c.Promoted, c.Memory
	out.Asked, out.Misbehaved, out.Broken, out.RingBytesTotal = c.Asks, c.Misbehaved, c.Broken, c.MovedBytes+live
	for _, why := range inprocess.Whys() {
		out.Native[why.String()] = c.Denied[why] + c.Returned[why]
	}
	for number, n := range c.Caused {
		if n > 0 {
			out.Native[negotiate.Reason(number).String()] += n
		}
	}
	return out
}

// telling reports what happens to connections, and keeps those that have ended.
type telling struct {
	rules atomic.Pointer[rules] // in force
	past  *pastConns            // set before the service serves

	mu       sync.Mutex // guards everything below
	promoted map[string]uint64
}

// pastConns are the latest promoted ends that have ended, or went back for good.
type pastConns struct {
	feed           *report.Feed
	closed, native *report.History
}

func newPast(f *report.Feed) *pastConns {
	return &pastConns{f, report.NewHistory(report.HistorySize, f), report.NewHistory(report.HistorySize, f)}
}

// Report makes a feed receive what happens to connections. Call it before Serve.
func (s *Service) Report(f *report.Feed) {
	if s != nil {
		s.told.past = newPast(f)
	}
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
	past := s.told.past
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
