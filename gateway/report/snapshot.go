package report

import (
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/smcgw/smcgw/negotiate"
)

// Source is queried by scrapes and the status page. Its methods have the same duties as those
// of admin.Control.
type Source interface {
	// Totals copies everything that does not require walking maps and peers: modes,
	// connections, bytes, decisions, reasons, memory, heartbeat, and what is degraded.
	Totals() Snapshot
	// Snapshot copies everything.
	Snapshot() Snapshot
}

// Snapshot holds every number of a gateway: metrics, stats and the numbers of status are made
// from it. Counters only grow. Maps may be nil and slices empty; a missing series is not
// reported.
type Snapshot struct {
	Mode       Mode
	Flows      map[Carrier]int
	FlowsTotal map[Carrier]uint64
	Fallbacks  []FallbackCount
	Decisions  []DecisionCount
	Demotions  []DemotionCount
	Ends       []EndCount
	BytesTotal map[Carrier]ByteCount
	// Stalls counts flows that were reset because they stalled.
	Stalls map[Carrier]uint64
	// Flows, FlowsTotal, Fallbacks and BytesTotal above are about TCP; UDP and Datagrams hold
	// the same and more about datagrams.
	UDP       ProtoStats
	Datagrams DatagramStats
	// InProcess is about connections between programs that have the library.
	InProcess InProcess
	// Handshakes and Durations hold one histogram per negotiated carrier; RoundTrips covers
	// SYN to SYN-ACK of connections that began on this host.
	Handshakes, Durations map[Carrier]HistogramSnapshot
	RoundTrips            HistogramSnapshot
	// Rings is the fill of the rings of carried connections.
	Rings map[Carrier]RingUse
	// CQErrors counts completions that ended queue pairs.
	CQErrors []CQErrorCount
	// Memory is the pool's use by kind: reserved, used, quarantined.
	Memory      map[string]uint64
	MemoryLimit uint64
	// SharesRefused counts, by resource, how often a peer wanted more than its share.
	SharesRefused map[string]uint64
	Peers         map[PeerState]int
	// Hosts is the number of addresses that Peers is about.
	Hosts   int
	Maps    []MapUse
	Devices []DeviceInfo
	// Ended holds the counters of devices that have ended, by name and carrier.
	Ended  []DeviceInfo
	Bounds Bounds
	// Heartbeat is when the datapath last beat, in wall clock time; zero if it never did.
	Heartbeat time.Time
	// Reloads counts attempts to read the configuration again: done, refused.
	Reloads map[string]uint64
	// Share is the part of the rules' connections that is carried, from 0 to 1.
	Share float64
	// GuardTripped: the guard has set the mode back. GuardTrips counts how often it has, by
	// cause. Compared is about the rule with the greatest share of connections slower than
	// native ones.
	GuardTripped bool
	GuardTrips   map[string]uint64
	Compared     Compared
	// Panics counts internal errors that ended one connection each.
	Panics uint64
	// Degraded is that of [Status].
	Degraded []string
	// Draining: the gateway is ending and accepts no new connections.
	Draining bool
	// CPU is the processor time used so far, by component of the daemon.
	CPU map[string]time.Duration
}

// RingUse is the fill of rings: the size of the receive rings, the bytes in them that
// applications have not taken, and the bytes sent that peers have not taken.
type RingUse struct{ Size, Waiting, Unacknowledged uint64 }

// CQErrorCount counts completions with an error.
type CQErrorCount struct {
	Carrier Carrier
	// Status is the standard name of the completion's status, in lower case.
	Status string
	Count  uint64
}

// FallbackCount counts connections that stayed or became native.
type FallbackCount struct {
	Reason string
	Side   Side
	Count  uint64
}

// DemotionCount counts connections that left a carrier and went on over the relay.
type DemotionCount struct {
	Carrier Carrier
	// Reason is a value of ConnInfo.Demoted.
	Reason string
	Count  uint64
}

// EndCount counts carried connections that have ended.
type EndCount struct {
	// Reason is [EndClosed] if both directions ended in order, otherwise a value of
	// ConnInfo.Reason.
	Reason string
	Side   Side
	// DecidedBy is a value of ConnInfo.DecidedBy; empty for an end in order.
	DecidedBy string
	Count     uint64
}

// DecisionCount counts decisions of the policy about new connections.
type DecisionCount struct {
	Action Action
	// Rule is the name of the rule, or "default" if no rule matched.
	Rule  string
	Count uint64
}

// MapUse is the fill of one eBPF map.
type MapUse struct {
	Map      string
	Entries  uint64
	Capacity uint64 // 0: the oldest entries make room
}

// Bounds is the use of what bounds a gateway besides memory and the eBPF maps, and what was
// turned away there.
type Bounds struct {
	// Flows is how many connections may be carried now: limits.max_flows, or less if the
	// process cannot have as many descriptors. FlowsConfigured is that limit.
	Flows, FlowsConfigured int
	// WireLegs counts connections of the wire TCP by state: open, dead.
	WireLegs map[string]int
	// Wire counts events of the wire TCP, Datapath those of the programs and of the queues of
	// the TUN devices, by name.
	Wire, Datapath map[string]uint64
	// LogDropped counts lines of the log that could not be written, AccessLeftOut those
	// of the access log that were above its limit.
	LogDropped, AccessLeftOut uint64
}

// AddRing adds the rings of a connection.
func (s *Snapshot) AddRing(by Carrier, r RingUse) {
	if r.Size == 0 {
		return
	}
	if s.Rings == nil {
		s.Rings = map[Carrier]RingUse{}
	}
	sum := s.Rings[by]
	s.Rings[by] = RingUse{sum.Size + r.Size, sum.Waiting + r.Waiting, sum.Unacknowledged + r.Unacknowledged}
}

// AddDecision adds to the series of one action and rule.
func (s *Snapshot) AddDecision(a Action, rule string, n uint64) {
	for i := range s.Decisions {
		if s.Decisions[i].Action == a && s.Decisions[i].Rule == rule {
			s.Decisions[i].Count += n
			return
		}
	}
	s.Decisions = append(s.Decisions, DecisionCount{Action: a, Rule: rule, Count: n})
}

// AddFallback adds to the series of one reason and side. Both the programs and the gateway
// may decide for the same reason.
func (s *Snapshot) AddFallback(r negotiate.Reason, side Side, n uint64) {
	name := r.String()
	for i := range s.Fallbacks {
		if s.Fallbacks[i].Reason == name && s.Fallbacks[i].Side == side {
			s.Fallbacks[i].Count += n
			return
		}
	}
	s.Fallbacks = append(s.Fallbacks, FallbackCount{Reason: name, Side: side, Count: n})
}

// wholeUDP returns the part about datagrams, with all its carriers.
func (s *Snapshot) wholeUDP() ProtoStats {
	return Stats{Protocols: map[Proto]ProtoStats{ProtoUDP: s.UDP}}.Filled().Protocols[ProtoUDP]
}

// native returns the fallbacks of both sides together, by reason.
func (s *Snapshot) native() map[string]uint64 {
	byReason := map[string]uint64{}
	for _, n := range s.Fallbacks {
		byReason[n.Reason] += n.Count
	}
	return byReason
}

// Stats returns the document of stats for a gateway started at the given time.
func (s *Snapshot) Stats(started time.Time) Stats {
	tcp := ProtoStats{Flows: map[Carrier]FlowCount{}, Bytes: s.BytesTotal, Native: s.native()}
	for c, n := range s.FlowsTotal {
		tcp.Flows[c] = FlowCount{Now: s.Flows[c], Total: n}
	}
	return Stats{
		StartedAt: started.Round(0).UTC(), Seconds: time.Since(started).Seconds(),
		Protocols: map[Proto]ProtoStats{ProtoTCP: tcp, ProtoUDP: s.UDP}, Datagrams: s.Datagrams,
		InProcess: s.InProcess,
	}
}

// Status returns the document of status for a gateway started at the given time: its numbers,
// without what is wrong.
func (s *Snapshot) Status(started time.Time) Status {
	return Status{
		Mode: s.Mode, UptimeSeconds: time.Since(started).Seconds(),
		Flows: s.Flows, FlowsTotal: s.FlowsTotal, BytesTotal: s.BytesTotal, FallbacksTotal: s.native(), ResetsTotal: s.resets(),
		Memory: MemoryUse{UsedBytes: s.Memory["used"], ReservedBytes: s.Memory["reserved"], LimitBytes: s.MemoryLimit},
		UDP:    s.UDP, InProcess: s.InProcess, Peers: s.Hosts,
		FlowLimit: FlowLimit{Now: s.Bounds.Flows, Configured: s.Bounds.FlowsConfigured}, LogDropped: s.Bounds.LogDropped,
	}
}

// resets returns the counts of ends that were not in order.
func (s *Snapshot) resets() map[string]uint64 {
	out := map[string]uint64{}
	for _, e := range s.Ends {
		if e.Reason != string(EndClosed) {
			out[e.Reason] += e.Count
		}
	}
	return out
}

// The counters of a document are its numbers of type uint64, by themselves and in maps.
// Numbers of other types are momentary values.

// addCounters adds the counters of from to those of to.
func addCounters[T any](to *T, from T) {
	combine(reflect.ValueOf(to).Elem(), reflect.ValueOf(from), func(a, b uint64) uint64 { return a + b })
}

// takeCounters subtracts the counters of from from those of to. None falls below 0, because
// they were not all read at the same instant.
func takeCounters[T any](to *T, from T) {
	combine(reflect.ValueOf(to).Elem(), reflect.ValueOf(from), func(a, b uint64) uint64 { return a - min(a, b) })
}

// combine sets each counter of to. It creates the maps of to anew, with the keys of both,
// because another document may share the old ones.
func combine(to, from reflect.Value, op func(a, b uint64) uint64) {
	switch to.Kind() {
	case reflect.Uint64:
		to.SetUint(op(to.Uint(), from.Uint()))
	case reflect.Struct:
		for i := range to.NumField() {
			if to.Type().Field(i).IsExported() {
				combine(to.Field(i), from.Field(i), op)
			}
		}
	case reflect.Map:
		if to.Len() == 0 && from.Len() == 0 {
			return
		}
		all := reflect.MakeMap(to.Type())
		for _, key := range append(to.MapKeys(), from.MapKeys()...) {
			a, b := reflect.New(to.Type().Elem()).Elem(), reflect.Zero(to.Type().Elem())
			if n := to.MapIndex(key); n.IsValid() {
				a.Set(n)
			}
			if n := from.MapIndex(key); n.IsValid() {
				b = n
			}
			combine(a, b, op)
			all.SetMapIndex(key, a)
		}
		to.Set(all)
	default: // not a counter
	}
}

// Tally accumulates the counters of parts that have ended. The zero value is ready to use.
type Tally struct {
	mu   sync.Mutex // guards past
	past Snapshot
}

// Sum sets the counters of s: those set by live plus those of parts that have ended. A part
// is counted exactly once, even while it is ending.
func (t *Tally) Sum(s *Snapshot, live func(*Snapshot)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	live(s)
	add(s, &t.past)
}

// End adds the counters of a part that is ending, which last sets. After that, the live
// function passed to Sum must no longer set them.
func (t *Tally) End(last func(*Snapshot)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	var s Snapshot
	last(&s)
	add(&t.past, &s)
}

// add adds counters. The devices of from count as ended.
func add(to, from *Snapshot) {
	to.Panics += from.Panics
	addCounters(&to.SharesRefused, from.SharesRefused)
	addCounters(&to.Bounds.Wire, from.Bounds.Wire)
	addCounters(&to.UDP, from.UDP)
	addCounters(&to.Datagrams, from.Datagrams)
	for _, n := range from.CQErrors {
		i := slices.IndexFunc(to.CQErrors, func(c CQErrorCount) bool { return c.Carrier == n.Carrier && c.Status == n.Status })
		if i < 0 {
			to.CQErrors = append(to.CQErrors, n)
			continue
		}
		to.CQErrors[i].Count += n.Count
	}
	for _, d := range slices.Concat(from.Ended, from.Devices) {
		i := slices.IndexFunc(to.Ended, func(e DeviceInfo) bool { return e.Name == d.Name })
		if i < 0 {
			i = len(to.Ended)
			to.Ended = append(to.Ended, DeviceInfo{Name: d.Name, Carrier: d.Carrier})
		}
		addCounters(&to.Ended[i].Counters, d.Counters)
	}
}

// devicesMost bounds the remembered names of devices: those of adapters are chosen by the
// host, which can always have new ones.
const devicesMost = 256

// PastDevices accumulates the counters of devices that have ended, by name. The zero value is
// ready to use.
type PastDevices struct {
	mu   sync.Mutex // guards past
	past map[string]map[string]uint64
}

// Sum adds to the counters of a device those of ended devices with its name.
func (t *PastDevices) Sum(d *DeviceInfo) {
	t.mu.Lock()
	defer t.mu.Unlock()
	addCounters(&d.Counters, t.past[d.Name])
}

// End adds the counters of a device that is ending. Sum must not be called for it after that.
func (t *PastDevices) End(d DeviceInfo) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.past == nil || t.past[d.Name] == nil && len(t.past) >= devicesMost {
		t.past = map[string]map[string]uint64{}
	}
	past := t.past[d.Name]
	addCounters(&past, d.Counters)
	t.past[d.Name] = past
}
