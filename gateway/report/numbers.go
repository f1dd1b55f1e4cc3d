package report

import (
	"cmp"
	"maps"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/smcgw/smcgw/inprocess"
	"github.com/smcgw/smcgw/negotiate"
)

// Namespace is the prefix of the names of metrics.
const Namespace = "smcgw_"

// Number is one number of a gateway as a metric. It is the only place that defines its name,
// meaning and labels. No label ever holds an address or a port: details per connection belong
// to conns.
type Number struct {
	Name, Help string
	Labels     Labels
	Kind       Kind
	// Read passes every series of the number in a snapshot to to.
	Read func(s *Snapshot, to Series)
}

// Labels are the names of a number's labels.
type Labels []string

// Kind is how a number changes.
type Kind int

// The kinds: a gauge is a momentary value, a counter only grows, times are histograms.
const (
	Gauge Kind = iota
	Counter
	Times
)

// Series receives the series of a number, with the values of its labels.
type Series struct {
	Value func(v float64, labels ...string)
	Times func(h HistogramSnapshot, labels ...string)
	// Now is when the snapshot was begun.
	Now time.Time
}

// The numbers that are counted by reason.
const (
	degraded        = "degraded"
	guardTripped    = "guard_tripped"
	fallbacksTotal  = "fallbacks_total"
	endedTotal      = "connections_ended_total"
	inProcessNative = "in_process_native_total"
	datagramNative  = "dgram_native_total"
)

// Numbers lists every number of a gateway of this version.
func Numbers(build VersionInfo) []Number {
	return append(inProcessNumbers(), []Number{
		{"build_info", "Version of the gateway; always 1.", Labels{"version", "go", "kernel"}, Gauge, func(_ *Snapshot, e Series) {
			e.Value(1, build.Version, runtime.Version(), build.Kernel)
		}},
		{"mode", "1 for the mode in force, 0 for the others.", Labels{"mode"}, Gauge, func(s *Snapshot, e Series) {
			for _, m := range Modes() {
				e.Value(boolValue(m == s.Mode), string(m))
			}
		}},
		{degraded, "1 for what keeps the gateway from doing all that the configuration asks for, else 0.", Labels{"reason"}, Gauge, func(s *Snapshot, e Series) {
			for _, reason := range degradations(s.Degraded) {
				e.Value(boolValue(slices.Contains(s.Degraded, reason)), reason)
			}
		}},
		{"draining", "1 while the gateway drains: new connections are native, and it ends.", nil, Gauge, func(s *Snapshot, e Series) { e.Value(boolValue(s.Draining)) }},
		{"flows", "Connections carried now.", Labels{"carrier"}, Gauge, func(s *Snapshot, e Series) { each(e, withCarriers(s.Flows)) }},
		{"flows_total", "Connections carried since the start.", Labels{"carrier"}, Counter, func(s *Snapshot, e Series) { all(e, Carriers(), s.FlowsTotal) }},
		{"stalls_total", "Connections reset because they stood still by the fault of a gateway.", Labels{"carrier"}, Counter, func(s *Snapshot, e Series) {
			all(e, Carriers(), s.Stalls)
		}},
		{"decisions_total", "Decisions of the policy about new connections.", Labels{"action", "rule"}, Counter, func(s *Snapshot, e Series) {
			for _, n := range s.Decisions {
				e.Value(float64(n.Count), string(n.Action), n.Rule)
			}
		}},
		{fallbacksTotal, "Connections that stayed or became native.", Labels{"reason", "side"}, Counter, func(s *Snapshot, e Series) {
			for _, n := range fallbacks(s.Fallbacks) {
				e.Value(float64(n.Count), n.Reason, string(n.Side))
			}
		}},
		{endedTotal, "Carried connections that ended, by reason and by the host that decided.", Labels{"reason", "side", "decided_by"}, Counter, func(s *Snapshot, e Series) {
			for _, n := range ends(s.Ends) {
				e.Value(float64(n.Count), n.Reason, string(n.Side), n.DecidedBy)
			}
		}},
		{"demotions_total", "Connections that left a carrier and went on over the relay.", Labels{"carrier", "reason"}, Counter, func(s *Snapshot, e Series) {
			for _, n := range demotions(s.Demotions) {
				e.Value(float64(n.Count), string(n.Carrier), n.Reason)
			}
		}},
		{"handshake_duration_seconds", "Time from the accepted SYN-ACK to the first byte carried.", Labels{"carrier"}, Times, func(s *Snapshot, e Series) {
			for carrier, h := range handshakes(s.Handshakes) {
				e.Times(h, string(carrier))
			}
		}},
		{"round_trip_seconds", "Time from SYN to SYN-ACK of carried connections that began on this host.", nil, Times, func(s *Snapshot, e Series) {
			e.Times(s.RoundTrips)
		}},
		{"flow_duration_seconds", "Life of carried connections that have ended.", Labels{"carrier"}, Times, func(s *Snapshot, e Series) {
			for carrier, h := range s.Durations {
				e.Times(h, string(carrier))
			}
		}},
		{"ring_bytes", "Size of the receive rings of carried connections.", Labels{"carrier"}, Gauge, func(s *Snapshot, e Series) {
			each(e, ringsBy(s.Rings, func(r RingUse) uint64 { return r.Size }))
		}},
		{"ring_waiting_bytes", "Bytes in receive rings that applications have not taken.", Labels{"carrier"}, Gauge, func(s *Snapshot, e Series) {
			each(e, ringsBy(s.Rings, func(r RingUse) uint64 { return r.Waiting }))
		}},
		{"unacknowledged_bytes", "Bytes sent to peers that they have not taken.", Labels{"carrier"}, Gauge, func(s *Snapshot, e Series) {
			each(e, ringsBy(s.Rings, func(r RingUse) uint64 { return r.Unacknowledged }))
		}},
		{"cq_errors_total", "Completions that ended a queue pair.", Labels{"carrier", "status"}, Counter, func(s *Snapshot, e Series) {
			for _, n := range s.CQErrors {
				e.Value(float64(n.Count), string(n.Carrier), n.Status)
			}
		}},
		{"cpu_seconds_total", "Processor time of the daemon: of each event loop, and of the rest.", Labels{"component"}, Counter, func(s *Snapshot, e Series) {
			for component, d := range s.CPU {
				e.Value(d.Seconds(), component)
			}
		}},
		{"bytes_total", "Application bytes carried.", Labels{"carrier", "direction"}, Counter, func(s *Snapshot, e Series) { bothWays(e, withCarriers(s.BytesTotal)) }},
		{"copy_bytes_total", "Bytes copied to carry connections, by the gateway and by the kernel for it.", Labels{"carrier"}, Counter, func(s *Snapshot, e Series) {
			each(e, copiedBytes(s))
		}},
		{"registered_memory_bytes", "Memory of rings and buffers.", Labels{"kind"}, Gauge, func(s *Snapshot, e Series) { each(e, s.Memory) }},
		{"memory_limit_bytes", "Hard limit of the memory of rings and buffers.", nil, Gauge, func(s *Snapshot, e Series) { e.Value(float64(s.MemoryLimit)) }},
		{"peer_share_refused_total", "How often a peer wanted more than its share of a resource.", Labels{"resource"}, Counter, func(s *Snapshot, e Series) {
			each(e, s.SharesRefused)
		}},
		{"peers", "Known peers.", Labels{"state"}, Gauge, func(s *Snapshot, e Series) { all(e, peerStates(), s.Peers) }},
		{"ebpf_map_entries", "Entries in an eBPF map.", Labels{"map"}, Gauge, func(s *Snapshot, e Series) {
			for _, m := range s.Maps {
				e.Value(float64(m.Entries), m.Map)
			}
		}},
		{"ebpf_map_capacity", "Most entries an eBPF map can hold, of maps that refuse more.", Labels{"map"}, Gauge, func(s *Snapshot, e Series) {
			for _, m := range s.Maps {
				if m.Capacity > 0 {
					e.Value(float64(m.Capacity), m.Map)
				}
			}
		}},
		{"device_up", "1 for a configured RDMA device that is active, 0 for the others.", Labels{"device"}, Gauge, func(s *Snapshot, e Series) {
			for i := range s.Devices {
				e.Value(boolValue(s.Devices[i].State == DeviceActive), s.Devices[i].Name)
			}
		}},
		{"device_events_total", "What happened in an RDMA device: packets, retransmissions, errors.", Labels{"device", "event"}, Counter, func(s *Snapshot, e Series) {
			for name, counts := range deviceEvents(s) {
				for event, n := range counts {
					e.Value(float64(n), name, event)
				}
			}
		}},
		{"config_reloads_total", "Attempts to read the configuration again.", Labels{"result"}, Counter, func(s *Snapshot, e Series) {
			all(e, []string{"done", "refused"}, s.Reloads)
		}},
		{"rollout_ratio", "Part of the connections of rules that is carried.", nil, Gauge, func(s *Snapshot, e Series) { e.Value(s.Share) }},
		{guardTripped, "1 while the guard keeps connections native, else 0.", nil, Gauge, func(s *Snapshot, e Series) { e.Value(boolValue(s.GuardTripped)) }},
		{"guard_trips_total", "How often the guard has taken the mode back.", Labels{"cause"}, Counter, func(s *Snapshot, e Series) {
			all(e, []string{"aborted", "slower"}, s.GuardTrips)
		}},
		{"guard_slower_ratio", "Share of connections that took longer than 95% of native ones, of the rule where it is greatest.", nil, Gauge, func(s *Snapshot, e Series) { e.Value(s.Compared.Ratio()) }},
		{"guard_compared_connections", "How many connections of that rule were compared in the window of the guard.", Labels{"kind"}, Gauge, func(s *Snapshot, e Series) {
			e.Value(float64(s.Compared.Native), "native")
			e.Value(float64(s.Compared.Offered), "offered")
		}},
		{inProcessNative, "Questions that were refused, and ends that went back to the kernel.", Labels{"reason"}, Counter, func(s *Snapshot, e Series) {
			for _, w := range inprocess.Whys() {
				e.Value(float64(s.InProcess.Native[w.String()]), w.String())
			}
		}},
		{"panics_total", "Internal errors that ended one connection each.", nil, Counter, func(s *Snapshot, e Series) { e.Value(float64(s.Panics)) }},
		// This is an age rather than the time of the beat: computed with Prometheus's clock,
		// it would include the age of the sample and the difference between the two clocks.
		{"datapath_heartbeat_age_seconds", "Time since the datapath last showed that it lives.", nil, Gauge, func(s *Snapshot, e Series) {
			if !s.Heartbeat.IsZero() {
				e.Value(max(0, e.Now.Sub(s.Heartbeat).Seconds()))
			}
		}},
		{"flow_limit", "Most connections that may be carried at once.", nil, Gauge, func(s *Snapshot, e Series) { e.Value(float64(s.Bounds.Flows)) }},
		{"wire_legs", "Connections of the wire TCP.", Labels{"state"}, Gauge, func(s *Snapshot, e Series) { each(e, s.Bounds.WireLegs) }},
		{"wire_events_total", "What happened in the wire TCP.", Labels{"event"}, Counter, func(s *Snapshot, e Series) { each(e, s.Bounds.Wire) }},
		{"datapath_events_total", "What the programs and the queues of the TUN devices did with packets.", Labels{"event"}, Counter, func(s *Snapshot, e Series) {
			each(e, s.Bounds.Datapath)
		}},
		{"log_dropped_total", "Lines of the log that could not be written.", nil, Counter, func(s *Snapshot, e Series) { e.Value(float64(s.Bounds.LogDropped)) }},
		{"access_log_left_out_total", "Lines of the access log that were too many in a second.", nil, Counter, func(s *Snapshot, e Series) {
			e.Value(float64(s.Bounds.AccessLeftOut))
		}},
		{"dgram_flows", "Pairs of UDP ends between which datagrams are carried now.", Labels{"carrier"}, Gauge, func(s *Snapshot, e Series) {
			for carrier, n := range s.wholeUDP().Flows {
				e.Value(float64(n.Now), string(carrier))
			}
		}},
		{"dgram_flows_total", "Pairs of UDP ends between which datagrams were carried since the start.", Labels{"carrier"}, Counter, func(s *Snapshot, e Series) {
			for carrier, n := range s.wholeUDP().Flows {
				e.Value(float64(n.Total), string(carrier))
			}
		}},
		{"dgram_bytes_total", "Bytes in carried datagrams.", Labels{"carrier", "direction"}, Counter, func(s *Snapshot, e Series) { bothWays(e, s.wholeUDP().Bytes) }},
		{"dgrams_total", "Datagrams that were steered to the gateway or came from peers.", Labels{"direction", "result"}, Counter, func(s *Snapshot, e Series) {
			e.Value(sum(s.Datagrams.Sent), "tx", "sent")
			e.Value(float64(s.Datagrams.Returned), "tx", "returned")
			e.Value(sum(s.Datagrams.Received), "rx", "received")
			e.Value(float64(s.Datagrams.Delivered), "rx", "delivered")
		}},
		{"dgrams_dropped_total", "Datagrams that were lost in the gateway.", Labels{"cause"}, Counter, func(s *Snapshot, e Series) {
			all(e, DatagramDrops(), s.Datagrams.Dropped)
		}},
		{datagramNative, "Pairs of UDP ends that stayed or became native.", Labels{"reason"}, Counter, func(s *Snapshot, e Series) { each(e, s.UDP.Native) }},
		{"dgram_queries_total", "Messages on the datagram port.", Labels{"result"}, Counter, func(s *Snapshot, e Series) {
			eachField(s.Datagrams.Resolution, func(f reflect.StructField, v float64) { e.Value(v, keyOf(f)) })
		}},
	}...)
}

// inProcessNumbers returns the numbers of [InProcess] that have help, named by the keys of
// its document.
func inProcessNumbers() (list []Number) {
	for i, f := range reflect.VisibleFields(reflect.TypeFor[InProcess]()) {
		help := f.Tag.Get("help")
		if help == "" {
			continue
		}
		n := Number{Name: "in_process_" + keyOf(f), Help: help, Read: func(s *Snapshot, e Series) {
			e.Value(numberOf(reflect.ValueOf(s.InProcess).Field(i)))
		}}
		if strings.HasSuffix(n.Name, "_total") {
			n.Kind = Counter
		}
		list = append(list, n)
	}
	return list
}

// keyOf returns the name of a field in its document.
func keyOf(f reflect.StructField) string {
	key, _, _ := strings.Cut(f.Tag.Get("json"), ",")
	return key
}

// eachField calls fn for the numbers of a document.
func eachField(doc any, fn func(f reflect.StructField, v float64)) {
	v := reflect.ValueOf(doc)
	for i := range v.NumField() {
		fn(v.Type().Field(i), numberOf(v.Field(i)))
	}
}

// numberOf returns a field as a number.
func numberOf(v reflect.Value) float64 {
	switch {
	case v.Kind() == reflect.Bool:
		return boolValue(v.Bool())
	case v.CanUint():
		return float64(v.Uint())
	default:
		return float64(v.Int())
	}
}

// degradations lists what can degrade a gateway, and what degrades it now.
func degradations(now []string) []string {
	list := append([]string{
		negotiate.ReasonAppLegBlocked.String(), negotiate.ReasonAddress.String(), negotiate.ReasonDeviceFailed.String(), ConfigRefused, NoSteering,
	}, now...)
	slices.Sort(list)
	return slices.Compact(list)
}

// deviceEvents returns the counters of devices by name, including former devices of the same
// name.
func deviceEvents(s *Snapshot) map[string]map[string]uint64 {
	all := map[string]map[string]uint64{}
	for _, d := range slices.Concat(s.Devices, s.Ended) {
		if all[d.Name] == nil {
			all[d.Name] = map[string]uint64{}
		}
		for event, n := range d.Counters {
			all[d.Name][event] += n
		}
	}
	return all
}

// ringsBy returns one number of the rings, for every RDMA carrier.
func ringsBy(rings map[Carrier]RingUse, of func(RingUse) uint64) map[Carrier]uint64 {
	all := map[Carrier]uint64{}
	for carrier, r := range withCarriers(rings) {
		if carrier != CarrierRelay { // the relay's bytes are in socket buffers
			all[carrier] = of(r)
		}
	}
	return all
}

// each emits a series for every entry of a map.
func each[K ~string, N int | uint64](e Series, m map[K]N) {
	for k, n := range m {
		e.Value(float64(n), string(k))
	}
}

// all emits a series for every key; 0 for keys that are not in the map.
func all[K ~string, N int | uint64](e Series, keys []K, m map[K]N) {
	for _, k := range keys {
		e.Value(float64(m[k]), string(k))
	}
}

// bothWays emits a series for each direction of every carrier.
func bothWays(e Series, m map[Carrier]ByteCount) {
	for carrier, n := range m {
		e.Value(float64(n.Tx), string(carrier), "tx")
		e.Value(float64(n.Rx), string(carrier), "rx")
	}
}

// sum returns the total over all carriers.
func sum(counts map[Carrier]uint64) (total float64) {
	for _, n := range counts {
		total += float64(n)
	}
	return total
}

func boolValue(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// lacksRoom returns the reasons by which an alert counts connections.
func lacksRoom() []negotiate.Reason {
	return []negotiate.Reason{negotiate.ReasonNoMemory, negotiate.ReasonFlowLimit, negotiate.ReasonRateLimit, negotiate.ReasonGatewayStale}
}

// fallbacks returns all counted ones, plus 0 for those that an alert is about; see [ends].
func fallbacks(counted []FallbackCount) []FallbackCount {
	s := Snapshot{Fallbacks: slices.Clone(counted)}
	for _, side := range []Side{SideClient, SideServer} {
		for _, r := range lacksRoom() {
			s.AddFallback(r, side, 0)
		}
	}
	return s.Fallbacks
}

// demotions returns all counted ones, plus 0 for those that may come; see [ends].
func demotions(counted []DemotionCount) []DemotionCount {
	counts := map[DemotionCount]uint64{}
	for _, by := range Carriers() {
		for _, cause := range DemotionCauses() {
			if by != CarrierRelay { // demotions lead to the relay
				counts[DemotionCount{Carrier: by, Reason: cause}] = 0
			}
		}
	}
	for _, n := range counted {
		counts[DemotionCount{Carrier: n.Carrier, Reason: n.Reason}] += n.Count
	}
	list := make([]DemotionCount, 0, len(counts))
	for n, count := range counts {
		n.Count = count
		list = append(list, n)
	}
	slices.SortFunc(list, func(a, b DemotionCount) int {
		return cmp.Or(cmp.Compare(a.Carrier, b.Carrier), cmp.Compare(a.Reason, b.Reason))
	})
	return list
}

// handshakes returns the histograms of every carrier, empty if nothing was counted.
func handshakes(counted map[Carrier]HistogramSnapshot) map[Carrier]HistogramSnapshot {
	list := map[Carrier]HistogramSnapshot{}
	for _, by := range Carriers() {
		list[by] = NewSetupHistogram().Snapshot()
	}
	maps.Copy(list, counted)
	return list
}

// ends returns all counted ends, plus 0 for those that may come: an alert does not see an
// increase in a series that did not exist before.
func ends(counted []EndCount) []EndCount {
	counts := map[EndCount]uint64{}
	for _, side := range []Side{SideClient, SideServer} {
		counts[EndCount{Reason: string(EndClosed), Side: side}] = 0
		for _, r := range ResetReasons() {
			for _, by := range []string{DecidedLocal, DecidedRemote} {
				counts[EndCount{Reason: r.String(), Side: side, DecidedBy: by}] = 0
			}
		}
	}
	for _, n := range counted {
		count := n.Count
		n.Count = 0
		counts[n] += count
	}
	list := make([]EndCount, 0, len(counts))
	for n, count := range counts {
		n.Count = count
		list = append(list, n)
	}
	slices.SortFunc(list, func(a, b EndCount) int {
		return strings.Compare(a.Reason+string(a.Side)+a.DecidedBy, b.Reason+string(b.Side)+b.DecidedBy)
	})
	return list
}

// copies is what carrying copies: per byte of the application on each path, and what the device
// itself counts. It excludes the copies of the applications' own reads and writes, and those
// that every TCP connection costs there.
//
//	shm    socket ─► peer's ring; ring ─► socket
//	hw, ib socket ─► send buffer; ring ─► socket
//	soft   socket ─► send buffer, ─► UDP socket; UDP socket ─►, ─► ring ─► socket
//	relay  socket ─►, ─► netstack ─► TUN; TUN ─► netstack ─►, ─► socket
type copies struct {
	tx, rx uint64   // copies per byte
	device []string // counters of bytes copied by the device's own sockets
}

// copiesOf returns what a carrier copies.
func copiesOf(c Carrier) copies {
	switch c {
	case CarrierShm, CarrierHW, CarrierIB:
		return copies{tx: 1, rx: 1}
	case CarrierSoft:
		return copies{tx: 1, rx: 2, device: []string{"tx_bytes", "rx_bytes"}}
	default:
		return copies{tx: 3, rx: 3}
	}
}

// copiedBytes returns, per carrier, how many bytes have been copied to carry connections, by
// the gateway and by the kernel for it. Divided by BytesTotal it is the number of copies per
// byte, including retransmissions and headers.
func copiedBytes(s *Snapshot) map[Carrier]uint64 {
	all := map[Carrier]uint64{}
	for carrier, n := range withCarriers(s.BytesTotal) {
		per := copiesOf(carrier)
		all[carrier] = per.tx*n.Tx + per.rx*n.Rx
		for _, d := range slices.Concat(s.Devices, s.Ended) {
			if d.Carrier != carrier {
				continue
			}
			for _, name := range per.device {
				all[carrier] += d.Counters[name]
			}
		}
	}
	return all
}
