package metrics

import (
	"runtime"
	"slices"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/inprocess"
	"github.com/smcgw/smcgw/negotiate"
)

// metric is one number of the gateway: the only place that has its name, what it is
// and its labels. No label ever holds an address or a port: detail per connection is
// what conns is for.
type metric struct {
	desc *prometheus.Desc
	kind prometheus.ValueType
	// read finds the series of the metric in a snapshot.
	read func(s *report.Snapshot, e emitter)
}

const (
	gauge     = prometheus.GaugeValue
	counter   = prometheus.CounterValue
	histogram = prometheus.UntypedValue // read sends it whole
)

// desc makes the description of one metric of the namespace.
func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("smcgw_"+name, help, labels, nil)
}

// metricTable lists all metrics of a gateway of this version.
func metricTable(build report.VersionInfo) []metric {
	return []metric{
		{desc("build_info", "Version of the gateway; always 1.", "version", "go", "kernel"), gauge, func(_ *report.Snapshot, e emitter) {
			e.value(1, build.Version, runtime.Version(), build.Kernel)
		}},
		{desc("mode", "1 for the mode in force, 0 for the others.", "mode"), gauge, func(s *report.Snapshot, e emitter) {
			for _, m := range report.Modes() {
				e.value(boolValue(m == s.Mode), string(m))
			}
		}},
		{desc("degraded", "1 for what keeps the gateway from doing all that the configuration asks for, 0 for what does not.", "reason"), gauge, func(s *report.Snapshot, e emitter) {
			for _, reason := range degradations(s.Degraded) {
				e.value(boolValue(slices.Contains(s.Degraded, reason)), reason)
			}
		}},
		{desc("draining", "1 while the gateway drains: new connections are native, and it ends."), gauge, func(s *report.Snapshot, e emitter) { e.value(boolValue(s.Draining)) }},
		{desc("flows", "Connections carried now.", "carrier"), gauge, func(s *report.Snapshot, e emitter) { each(e, report.WithCarriers(s.Flows)) }},
		{desc("flows_total", "Connections carried since the start.", "carrier"), counter, func(s *report.Snapshot, e emitter) { all(e, report.Carriers(), s.FlowsTotal) }},
		{desc("stalls_total", "Connections reset because they stood still by the fault of a gateway.", "carrier"), counter, func(s *report.Snapshot, e emitter) {
			all(e, report.Carriers(), s.Stalls)
		}},
		{desc("decisions_total", "Decisions of the policy about new connections.", "action", "rule"), counter, func(s *report.Snapshot, e emitter) {
			for _, n := range s.Decisions {
				e.value(float64(n.Count), string(n.Action), n.Rule)
			}
		}},
		{desc("fallbacks_total", "Connections that stayed or became native.", "reason", "side"), counter, func(s *report.Snapshot, e emitter) {
			for _, n := range fallbacks(s.Fallbacks) {
				e.value(float64(n.Count), n.Reason, string(n.Side))
			}
		}},
		{desc("connections_ended_total", "Carried connections that ended, by why and by the host that decided.", "reason", "side", "decided_by"), counter, func(s *report.Snapshot, e emitter) {
			for _, n := range ends(s.Ends) {
				e.value(float64(n.Count), n.Reason, string(n.Side), n.DecidedBy)
			}
		}},
		{desc("demotions_total", "Connections that left a carrier and went on over the relay.", "carrier", "reason"), counter, func(s *report.Snapshot, e emitter) {
			for _, n := range demotions(s.Demotions) {
				e.value(float64(n.Count), string(n.Carrier), n.Reason)
			}
		}},
		{desc("handshake_duration_seconds", "Time from the accepted SYN-ACK to the first byte carried.", "carrier"), histogram, func(s *report.Snapshot, e emitter) {
			for carrier, h := range handshakes(s.Handshakes) {
				e.histogram(h, string(carrier))
			}
		}},
		{desc("round_trip_seconds", "Time from SYN to SYN-ACK of carried connections that began on this host."), histogram, func(s *report.Snapshot, e emitter) {
			e.histogram(s.RoundTrips)
		}},
		{desc("flow_duration_seconds", "Life of carried connections that have ended.", "carrier"), histogram, func(s *report.Snapshot, e emitter) {
			for carrier, h := range s.Durations {
				e.histogram(h, string(carrier))
			}
		}},
		{desc("ring_bytes", "Size of the receive rings of carried connections.", "carrier"), gauge, func(s *report.Snapshot, e emitter) {
			each(e, ringsBy(s.Rings, func(r report.RingUse) uint64 { return r.Size }))
		}},
		{desc("ring_waiting_bytes", "Bytes in receive rings that applications have not taken.", "carrier"), gauge, func(s *report.Snapshot, e emitter) {
			each(e, ringsBy(s.Rings, func(r report.RingUse) uint64 { return r.Waiting }))
		}},
		{desc("unacknowledged_bytes", "Bytes sent to peers that they have not taken.", "carrier"), gauge, func(s *report.Snapshot, e emitter) {
			each(e, ringsBy(s.Rings, func(r report.RingUse) uint64 { return r.Unacknowledged }))
		}},
		{desc("cq_errors_total", "Completions that ended a queue pair.", "carrier", "status"), counter, func(s *report.Snapshot, e emitter) {
			for _, n := range s.CQErrors {
				e.value(float64(n.Count), string(n.Carrier), n.Status)
			}
		}},
		{desc("cpu_seconds_total", "Processor time of the daemon: of each event loop, and of the rest.", "component"), counter, func(s *report.Snapshot, e emitter) {
			for component, d := range s.CPU {
				e.value(d.Seconds(), component)
			}
		}},
		{desc("bytes_total", "Application bytes carried.", "carrier", "direction"), counter, func(s *report.Snapshot, e emitter) { bothWays(e, report.WithCarriers(s.BytesTotal)) }},
		{desc("copy_bytes_total", "Bytes copied to carry connections, by the gateway and by the kernel for it.", "carrier"), counter, func(s *report.Snapshot, e emitter) {
			each(e, copiedBytes(s))
		}},
		{desc("registered_memory_bytes", "Memory of rings and buffers.", "kind"), gauge, func(s *report.Snapshot, e emitter) { each(e, s.Memory) }},
		{desc("memory_limit_bytes", "Hard limit of the memory of rings and buffers."), gauge, func(s *report.Snapshot, e emitter) { e.value(float64(s.MemoryLimit)) }},
		{desc("peer_share_refused_total", "How often a peer wanted more than its share of a resource.", "resource"), counter, func(s *report.Snapshot, e emitter) {
			each(e, s.SharesRefused)
		}},
		{desc("peers", "Known peers.", "state"), gauge, func(s *report.Snapshot, e emitter) { all(e, report.PeerStates(), s.Peers) }},
		{desc("ebpf_map_entries", "Entries in an eBPF map.", "map"), gauge, func(s *report.Snapshot, e emitter) {
			for _, m := range s.Maps {
				e.value(float64(m.Entries), m.Map)
			}
		}},
		{desc("ebpf_map_capacity", "Most entries an eBPF map can hold, of maps that refuse more.", "map"), gauge, func(s *report.Snapshot, e emitter) {
			for _, m := range s.Maps {
				if m.Capacity > 0 {
					e.value(float64(m.Capacity), m.Map)
				}
			}
		}},
		{desc("device_up", "1 for a configured RDMA device that is active, 0 for the others.", "device"), gauge, func(s *report.Snapshot, e emitter) {
			for i := range s.Devices {
				e.value(boolValue(s.Devices[i].State == report.DeviceActive), s.Devices[i].Name)
			}
		}},
		{desc("device_events_total", "What happened in an RDMA device: packets, retransmissions, errors.", "device", "event"), counter, func(s *report.Snapshot, e emitter) {
			for name, counts := range deviceEvents(s) {
				for event, n := range counts {
					e.value(float64(n), name, event)
				}
			}
		}},
		{desc("config_reloads_total", "Attempts to read the configuration again.", "result"), counter, func(s *report.Snapshot, e emitter) {
			all(e, []string{"done", "refused"}, s.Reloads)
		}},
		{desc("rollout_ratio", "Part of the connections of rules that is carried."), gauge, func(s *report.Snapshot, e emitter) { e.value(s.Share) }},
		{desc("guard_tripped", "1 while the guard keeps connections native, else 0."), gauge, func(s *report.Snapshot, e emitter) { e.value(boolValue(s.GuardTripped)) }},
		{desc("guard_trips_total", "How often the guard has taken the mode back.", "cause"), counter, func(s *report.Snapshot, e emitter) {
			all(e, []string{"aborted", "slower"}, s.GuardTrips)
		}},
		{desc("guard_slower_ratio", "Of the rule where it is greatest: part of the connections that took longer than 95% of native ones."), gauge, func(s *report.Snapshot, e emitter) { e.value(s.Compared.Ratio()) }},
		{desc("guard_compared_connections", "How many connections of that rule were compared in the window of the guard.", "kind"), gauge, func(s *report.Snapshot, e emitter) {
			e.value(float64(s.Compared.Native), "native")
			e.value(float64(s.Compared.Offered), "offered")
		}},
		{desc("in_process_up", "1 while programs with the library are served, else 0."), gauge, func(s *report.Snapshot, e emitter) { e.value(boolValue(s.InProcess.Serving)) }},
		{desc("in_process_programs", "Processes with the library that have asked."), gauge, func(s *report.Snapshot, e emitter) { e.value(float64(s.InProcess.Processes)) }},
		{desc("in_process_waiting", "Ends of connections that wait for the other end to ask."), gauge, func(s *report.Snapshot, e emitter) { e.value(float64(s.InProcess.Waiting)) }},
		{desc("in_process_connections", "Connections in process now."), gauge, func(s *report.Snapshot, e emitter) { e.value(float64(s.InProcess.Connections)) }},
		{desc("in_process_connections_total", "Connections promoted since the start."), counter, func(s *report.Snapshot, e emitter) { e.value(float64(s.InProcess.ConnectionsTotal)) }},
		{desc("in_process_predicted_total", "Connections that would have been promoted, in the mode observe."), counter, func(s *report.Snapshot, e emitter) { e.value(float64(s.InProcess.Predicted)) }},
		{desc("in_process_bytes_total", "Application bytes of connections in process, both directions, as the programs say; the kernel's counters of packets have none of them."), counter, func(s *report.Snapshot, e emitter) {
			e.value(float64(s.InProcess.RingBytesTotal))
		}},
		{desc("in_process_memory_bytes", "What the rings of connections in process could hold."), gauge, func(s *report.Snapshot, e emitter) { e.value(float64(s.InProcess.MemoryBytes)) }},
		{desc("in_process_asked_total", "Questions of programs whether a connection may be promoted."), counter, func(s *report.Snapshot, e emitter) { e.value(float64(s.InProcess.Asked)) }},
		{desc("in_process_native_total", "Questions that were refused, and ends that went back to the kernel.", "reason"), counter, func(s *report.Snapshot, e emitter) {
			for _, w := range inprocess.Whys() {
				e.value(float64(s.InProcess.Native[w.String()]), w.String())
			}
		}},
		{desc("in_process_broken_total", "Connections that were reset because a program's memory said what cannot be."), counter, func(s *report.Snapshot, e emitter) { e.value(float64(s.InProcess.Broken)) }},
		{desc("in_process_misbehaved_total", "Programs that were let go because they said what cannot be."), counter, func(s *report.Snapshot, e emitter) { e.value(float64(s.InProcess.Misbehaved)) }},
		{desc("panics_total", "Internal errors that ended one connection each."), counter, func(s *report.Snapshot, e emitter) { e.value(float64(s.Panics)) }},
		// An age, not the time of the beat: by the clock of Prometheus it would have the age of the
		// sample in it, and what the two clocks differ by.
		{desc("datapath_heartbeat_age_seconds", "Time since the datapath last showed that it lives."), gauge, func(s *report.Snapshot, e emitter) {
			if !s.Heartbeat.IsZero() {
				e.value(max(0, e.now.Sub(s.Heartbeat).Seconds()))
			}
		}},
		{desc("flow_limit", "Most connections that may be carried at once."), gauge, func(s *report.Snapshot, e emitter) { e.value(float64(s.Bounds.Flows)) }},
		{desc("wire_legs", "Connections of the wire TCP.", "state"), gauge, func(s *report.Snapshot, e emitter) { each(e, s.Bounds.WireLegs) }},
		{desc("wire_events_total", "What happened in the wire TCP.", "event"), counter, func(s *report.Snapshot, e emitter) { each(e, s.Bounds.Wire) }},
		{desc("datapath_events_total", "What the programs and the queues of the TUN devices did with packets.", "event"), counter, func(s *report.Snapshot, e emitter) {
			each(e, s.Bounds.Datapath)
		}},
		{desc("log_dropped_total", "Lines of the log that could not be written."), counter, func(s *report.Snapshot, e emitter) { e.value(float64(s.Bounds.LogDropped)) }},
		{desc("access_log_left_out_total", "Lines of the access log above log.access_limit."), counter, func(s *report.Snapshot, e emitter) {
			e.value(float64(s.Bounds.AccessLeftOut))
		}},
		{desc("dgram_flows", "Pairs of UDP ends between which datagrams are carried now.", "carrier"), gauge, func(s *report.Snapshot, e emitter) {
			for carrier, n := range s.WholeUDP().Flows {
				e.value(float64(n.Now), string(carrier))
			}
		}},
		{desc("dgram_flows_total", "Pairs of UDP ends between which datagrams were carried since the start.", "carrier"), counter, func(s *report.Snapshot, e emitter) {
			for carrier, n := range s.WholeUDP().Flows {
				e.value(float64(n.Total), string(carrier))
			}
		}},
		{desc("dgram_bytes_total", "Bytes in carried datagrams.", "carrier", "direction"), counter, func(s *report.Snapshot, e emitter) { bothWays(e, s.WholeUDP().Bytes) }},
		{desc("dgrams_total", "Datagrams that were steered to the gateway or came from peers.", "direction", "result"), counter, func(s *report.Snapshot, e emitter) {
			e.value(sum(s.Datagrams.Sent), "tx", "sent")
			e.value(float64(s.Datagrams.Returned), "tx", "returned")
			e.value(sum(s.Datagrams.Received), "rx", "received")
			e.value(float64(s.Datagrams.Delivered), "rx", "delivered")
		}},
		{desc("dgrams_dropped_total", "Datagrams that were lost in the gateway.", "cause"), counter, func(s *report.Snapshot, e emitter) {
			all(e, report.DatagramDrops(), s.Datagrams.Dropped)
		}},
		{desc("dgram_native_total", "Pairs of UDP ends that stayed or became native.", "reason"), counter, func(s *report.Snapshot, e emitter) { each(e, s.UDP.Native) }},
		{desc("dgram_queries_total", "Messages on the datagram port.", "result"), counter, func(s *report.Snapshot, e emitter) {
			r := s.Datagrams.Resolution
			e.value(float64(r.Queries), "sent")
			e.value(float64(r.Answers), "answer")
			e.value(float64(r.Refusals), "refusal")
			e.value(float64(r.Asked), "asked")
			e.value(float64(r.Answered), "answered")
			e.value(float64(r.Refused), "refused")
			e.value(float64(r.Ignored), "ignored")
		}},
	}
}

// degradations lists what a gateway can be degraded by, and what it is.
func degradations(now []string) []string {
	list := append([]string{
		negotiate.ReasonAppLegBlocked.String(), negotiate.ReasonAddress.String(), negotiate.ReasonDeviceFailed.String(), report.ConfigRefused, report.NoSteering,
	}, now...)
	slices.Sort(list)
	return slices.Compact(list)
}

// deviceEvents are the counters of devices by name, with those of the same name before.
func deviceEvents(s *report.Snapshot) map[string]map[string]uint64 {
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

// ringsBy is one number of the rings of every RDMA carrier.
func ringsBy(rings map[report.Carrier]report.RingUse, of func(report.RingUse) uint64) map[report.Carrier]uint64 {
	all := map[report.Carrier]uint64{}
	for carrier, r := range report.WithCarriers(rings) {
		if carrier != report.CarrierRelay { // its bytes are in socket buffers
			all[carrier] = of(r)
		}
	}
	return all
}

// each sends a series for every entry of a map.
func each[K ~string, N int | uint64](e emitter, m map[K]N) {
	for k, n := range m {
		e.value(float64(n), string(k))
	}
}

// all sends a series for every key, 0 for those that are not in the map.
func all[K ~string, N int | uint64](e emitter, keys []K, m map[K]N) {
	for _, k := range keys {
		e.value(float64(m[k]), string(k))
	}
}

// bothWays sends a series for either direction of every carrier.
func bothWays(e emitter, m map[report.Carrier]report.ByteCount) {
	for carrier, n := range m {
		e.value(float64(n.Tx), string(carrier), "tx")
		e.value(float64(n.Rx), string(carrier), "rx")
	}
}

// sum adds the counters of all carriers.
func sum(counts map[report.Carrier]uint64) (total float64) {
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
