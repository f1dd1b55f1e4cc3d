package report

import (
	"time"

	"github.com/smcgw/smcgw/negotiate"
)

// Source is what scrapes and the status page ask. Its methods have the duties of
// Control's.
type Source interface {
	// Totals copies what takes no walk of maps, peers and devices: modes, connections,
	// bytes, decisions, reasons, memory, heartbeat, and what is degraded.
	Totals() Snapshot
	// Snapshot copies everything.
	Snapshot() Snapshot
}

// Snapshot is every number of a gateway: the metrics, stats and the numbers of status
// are made of it. Counters only grow. Maps may be nil and slices empty; a series that is
// not there is not reported.
type Snapshot struct {
	Mode       Mode
	Flows      map[Carrier]int
	FlowsTotal map[Carrier]uint64
	Fallbacks  []FallbackCount
	Decisions  []DecisionCount
	Demotions  []DemotionCount
	Ends       []EndCount
	BytesTotal map[Carrier]ByteCount
	// Stalls are flows that were reset because they stood still.
	Stalls map[Carrier]uint64
	// Flows, FlowsTotal, Fallbacks and BytesTotal above are about TCP; UDP and
	// Datagrams are the same and more about datagrams.
	UDP       ProtoStats
	Datagrams DatagramStats
	// InProcess is about connections between programs that have the library.
	InProcess InProcess
	// Handshakes and Durations hold one histogram per carrier that was negotiated;
	// RoundTrips are those of SYN and SYN-ACK, of connections that began here.
	Handshakes, Durations map[Carrier]HistogramSnapshot
	RoundTrips            HistogramSnapshot
	// Rings is the fill of the rings of carried connections.
	Rings map[Carrier]RingUse
	// CQErrors are completions that ended queue pairs.
	CQErrors []CQErrorCount
	// Memory is the pool's use by kind: rmb, sndbuf, pooled.
	Memory      map[string]uint64
	MemoryLimit uint64
	// SharesRefused counts by resource how often a peer wanted more than its share.
	SharesRefused map[string]uint64
	Peers         map[PeerState]int
	// Hosts is how many addresses Peers are about.
	Hosts   int
	Maps    []MapUse
	Devices []DeviceInfo
	// Ended has the counters of devices of gateways before, by name and carrier.
	Ended  []DeviceInfo
	Bounds Bounds
	// Heartbeat is when the datapath last beat, as wall clock time; zero if it
	// never did.
	Heartbeat time.Time
	// Reloads counts attempts to read the configuration again: done, refused.
	Reloads map[string]uint64
	// Share is the part of the connections of rules that is carried, 0 to 1.
	Share float64
	// GuardTripped: the guard has taken the mode back; GuardTrips is how often it has, by
	// cause. Compared is of the rule whose connections are slower than native ones in the
	// greatest share.
	GuardTripped bool
	GuardTrips   map[string]uint64
	Compared     Compared
	// Panics are the internal errors that ended one connection each.
	Panics uint64
	// Degraded is that of [Status].
	Degraded []string
	// Draining: the gateway ends, and takes no new connection.
	Draining bool
	// CPU is the processor time used so far, by what of the daemon used it.
	CPU map[string]time.Duration
}

// RingUse is the fill of rings: of the receive rings, bytes that applications have not
// taken, and bytes that were sent and that peers have not taken.
type RingUse struct{ Size, Waiting, Unacknowledged uint64 }

// CQErrorCount counts completions with an error.
type CQErrorCount struct {
	Carrier Carrier
	// Status is the standard name of the status of the completion, in lower case.
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
	// Reason is what ConnInfo.Demoted has.
	Reason string
	Count  uint64
}

// EndCount counts carried connections that have ended.
type EndCount struct {
	// Reason is [EndClosed] where both directions ended in order, else what ConnInfo.Reason
	// has.
	Reason string
	Side   Side
	// DecidedBy is what ConnInfo.DecidedBy has; empty for an end in order.
	DecidedBy string
	Count     uint64
}

// DecisionCount counts what the policy decided about new connections.
type DecisionCount struct {
	Action Action
	// Rule is the name of the rule, "default" where no rule matched.
	Rule  string
	Count uint64
}

// MapUse is the fill of one eBPF map.
type MapUse struct {
	Map      string
	Entries  uint64
	Capacity uint64 // 0: the oldest entries make room
}

// Bounds is the fill of what bounds a gateway, and what was turned away there,
// beside memory and the eBPF maps.
type Bounds struct {
	// Flows is how many connections may be carried now: limits.max_flows, or less
	// where the process may not have as many descriptors. FlowsConfigured is that limit.
	Flows, FlowsConfigured int
	// WireLegs counts connections of the wire TCP by state: open, dead.
	WireLegs map[string]int
	// Wire counts what happened in the wire TCP, Datapath what did in the programs
	// and the queues of the TUN devices, by name.
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

// AddFallback adds to the series of one reason and side: the programs and the
// gateway can both decide for the same reason.
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

// wholeUDP is the part about datagrams with all its carriers.
func (s *Snapshot) wholeUDP() ProtoStats {
	return Stats{Protocols: map[Proto]ProtoStats{ProtoUDP: s.UDP}}.Filled().Protocols[ProtoUDP]
}

// native adds the fallbacks of both sides, by reason.
func (s *Snapshot) native() map[string]uint64 {
	byReason := map[string]uint64{}
	for _, n := range s.Fallbacks {
		byReason[n.Reason] += n.Count
	}
	return byReason
}

// Stats is the document of stats for a gateway that started at some time.
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

// Status is the document of status for a gateway that started at some time: its
// numbers, without what is wrong.
func (s *Snapshot) Status(started time.Time) Status {
	return Status{
		Mode: s.Mode, UptimeSeconds: time.Since(started).Seconds(),
		Flows: s.Flows, FlowsTotal: s.FlowsTotal, BytesTotal: s.BytesTotal, FallbacksTotal: s.native(), ResetsTotal: s.resets(),
		Memory: MemoryUse{UsedBytes: s.Memory["used"], ReservedBytes: s.Memory["reserved"], LimitBytes: s.MemoryLimit},
		UDP:    s.UDP, InProcess: s.InProcess, Peers: s.Hosts,
		FlowLimit: FlowLimit{Now: s.Bounds.Flows, Configured: s.Bounds.FlowsConfigured}, LogDropped: s.Bounds.LogDropped,
	}
}

// resets adds up the ends that were not in order.
func (s *Snapshot) resets() map[string]uint64 {
	out := map[string]uint64{}
	for _, e := range s.Ends {
		if e.Reason != string(EndClosed) {
			out[e.Reason] += e.Count
		}
	}
	return out
}
