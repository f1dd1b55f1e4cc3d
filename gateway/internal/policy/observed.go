package policy

import (
	"cmp"
	"net/netip"
	"slices"
	"sync"

	"github.com/smcgw/smcgw/ebpf"
	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/report"
)

const (
	// maxServices and maxHosts bound Observed. Connections of further services are counted as forgotten; further hosts
	// of a service are not listed.
	maxServices = 1024
	maxHosts    = 64
)

// observedService is what connections are grouped by.
type observedService struct {
	side    report.Side
	port    uint16
	rule    string
	carries bool
}

// observedSums are the sums over one group.
type observedSums struct {
	report.ObservedService
	hosts   map[netip.Addr]struct{}
	seconds float64 // total duration of bulk transfers
}

// Observed adds up what connections did while nothing was carried: how many there were, and what they moved. It
// predicts nothing; smcgw bench --peer measures. The zero value is ready to use.
type Observed struct {
	mu        sync.Mutex // guards everything below
	services  map[observedService]*observedSums
	forgotten uint64
}

// Add adds what the programs have seen. rule returns the name of the rule with a number of the policy in force.
func (b *Observed) Add(list []ebpf.Seen, rule func(index int) string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	full := false // once dropping fails it keeps failing: new entries are of rules in force
	room := func() bool {
		full = full || !b.dropLocked(rule)
		return !full
	}
	for i := range list {
		b.addLocked(&list[i], rule, room)
	}
}

// addLocked adds one entry. room drops a service to make room for a new one; false if it cannot.
func (b *Observed) addLocked(v *ebpf.Seen, rule func(index int) string, room func() bool) {
	k := observedService{side: report.SideClient, port: v.Port, carries: v.Carries}
	if v.Side == ebpf.SideServer {
		k.side = report.SideServer
	}
	if !v.Past {
		k.rule = rule(v.Rule)
	}
	s := b.services[k]
	if s == nil && len(b.services) >= maxServices && (v.Past || !room()) {
		b.forgotten += v.Begun
		return
	}
	if s == nil {
		s = &observedSums{hosts: map[netip.Addr]struct{}{}}
		s.Side, s.Port, s.Rule, s.Carries = k.side, k.port, k.rule, k.carries
		if b.services == nil {
			b.services = map[observedService]*observedSums{}
		}
		b.services[k] = s
	}
	if len(s.hosts) < maxHosts {
		s.hosts[v.Host] = struct{}{}
	}
	s.Connections += v.Begun
	s.Ended += v.Ended
	s.Bytes.Tx += v.Sent
	s.Bytes.Rx += v.Received
	s.Bulk += v.Bulk
	s.BulkBytes += v.BulkBytes
	s.seconds += v.BulkLasted.Seconds()
}

// dropLocked drops the service with the fewest bytes among those whose rules are gone. It returns false if there is
// none.
func (b *Observed) dropLocked(rule func(number int) string) bool {
	there := map[string]bool{}
	for number := ebpf.NoRule; number < ebpf.MaxRules; number++ {
		there[rule(number)] = true
	}
	var least *observedSums
	var of observedService
	for k, s := range b.services {
		if !there[k.rule] && (least == nil || s.Bytes.Tx+s.Bytes.Rx < least.Bytes.Tx+least.Bytes.Rx) {
			least, of = s, k
		}
	}
	if least == nil {
		return false
	}
	b.forgotten += least.Connections
	delete(b.services, of)
	return true
}

// List returns the services, those with the most bytes first.
func (b *Observed) List() []report.ObservedService {
	b.mu.Lock()
	defer b.mu.Unlock()
	var list []report.ObservedService
	for _, s := range b.services {
		o := s.ObservedService
		for h := range s.hosts {
			o.Hosts = append(o.Hosts, h)
		}
		slices.SortFunc(o.Hosts, netip.Addr.Compare)
		o.MoreHosts = len(s.hosts) == maxHosts
		if s.seconds > 0 {
			o.BulkBytesPerSecond = float64(s.BulkBytes) / s.seconds
		}
		list = append(list, o)
	}
	slices.SortFunc(list, func(a, b report.ObservedService) int {
		return cmp.Or(
			cmp.Compare(b.Bytes.Tx+b.Bytes.Rx, a.Bytes.Tx+a.Bytes.Rx), cmp.Compare(b.Connections, a.Connections),
			cmp.Compare(a.Port, b.Port), cmp.Compare(a.Side, b.Side), cmp.Compare(a.Rule, b.Rule),
		)
	})
	return list
}

// lost returns the number of connections that were forgotten for want of room.
func (b *Observed) lost() uint64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.forgotten
}

// Report returns the policy document for the rules of a configuration, the current share, and the decisions counted.
func (b *Observed) Report(c config.Config, share config.Share, decided []report.DecisionCount) report.PolicyReport {
	p := report.PolicyReport{
		Observed: b.List(), Forgotten: b.lost(),
		Rollout: report.RolloutReport{Percent: share.Percent()},
	}
	for i := range c.Policy {
		p.Rules = append(p.Rules, ruleReport(&c.Policy[i], share))
	}
	if n := len(c.Policy); n == 0 || c.Policy[n-1].Name != NoRule {
		p.Rules = append(p.Rules, report.RuleReport{Name: NoRule, Action: report.ActionPass})
	}
	addCounts(&p, decided)
	return p
}

func ruleReport(r *config.Rule, share config.Share) report.RuleReport {
	out := report.RuleReport{Name: r.Name, Action: r.Action, Proto: r.Match.Proto, Direction: r.Match.Direction}
	if r.Action != report.ActionPass {
		if r.Percent != 0 {
			share = r.Percent
		}
		percent := share.Percent()
		out.Percent = &percent
	}
	return out
}

// addCounts adds what the rules decided, and what was observed of their connections.
func addCounts(p *report.PolicyReport, decided []report.DecisionCount) {
	byName := map[string]*report.RuleReport{}
	for i := range p.Rules {
		byName[p.Rules[i].Name] = &p.Rules[i]
	}
	for _, d := range decided {
		switch r := byName[d.Rule]; {
		case r == nil: // a rule that is gone
		case d.Action == report.ActionPass:
			r.Passed += d.Count
		default:
			r.Selected += d.Count
		}
	}
	for i := range p.Observed {
		o := &p.Observed[i]
		if r := byName[o.Rule]; r != nil && o.Carries {
			r.Bytes += o.Bytes.Tx + o.Bytes.Rx
			r.Bulk += o.BulkBytes
		}
	}
}

// NoRule is the name under which connections are counted that no rule matched. It is also the name of a final rule that
// merely states this default.
const NoRule = "default"

// Decided holds what earlier policies decided. The programs count by rule number, and a number may stand for another
// rule after a change.
type Decided struct {
	past  []report.DecisionCount // by the rules of those policies
	until map[int]ebpf.Decided   // the counters up to which decisions are theirs
}

// RuleOf returns the name and action of the rule to which the programs give a number. The rules of opt-ins precede
// those of the configuration, those of trials follow them.
func RuleOf(rules []config.Rule, ahead, number int) (name string, action report.Action) {
	switch i := number - ahead; {
	case number < 0:
		return NoRule, report.ActionPass
	case i < 0:
		return OptInRule, report.ActionAccelerate
	case i < len(rules):
		return rules[i].Name, rules[i].Action
	default:
		return TrialRule, report.ActionAccelerate
	}
}

// AddTo adds the decisions of the programs, by the rules in force and by earlier ones. An accelerating rule also counts
// as pass what the never-list takes out of it. Rules in force are added even with a count of 0: an alert would miss the
// first increase of a series that does not exist before.
func (b *Decided) AddTo(s *report.Snapshot, rules []config.Rule, ahead int, list []ebpf.Decided) {
	for _, p := range b.past {
		s.AddDecision(p.Action, p.Rule, p.Count)
	}
	for i := range rules {
		s.AddDecision(rules[i].Action, rules[i].Name, 0)
	}
	for _, d := range list {
		name, action := RuleOf(rules, ahead, d.Rule)
		before := b.until[d.Rule]
		if n := d.Accelerate - before.Accelerate; n > 0 {
			s.AddDecision(action, name, n)
		}
		if n := d.Pass - before.Pass; n > 0 {
			s.AddDecision(report.ActionPass, name, n)
		}
	}
}

// Close returns the Decided for the policy that replaces this one.
func (b *Decided) Close(rules []config.Rule, ahead int, list []ebpf.Decided) Decided {
	var s report.Snapshot
	b.AddTo(&s, rules, ahead, list)
	s.Decisions = slices.DeleteFunc(s.Decisions, func(n report.DecisionCount) bool { return n.Count == 0 })
	next := Decided{past: s.Decisions, until: map[int]ebpf.Decided{}}
	for _, d := range list {
		next.until[d.Rule] = d
	}
	return next
}
