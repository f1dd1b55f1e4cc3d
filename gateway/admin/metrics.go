package admin

import (
	"net/http"
	"runtime"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/smcgw/smcgw/gateway/config"
)

// desc makes the description of one metric of the namespace.
func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("smcgw_"+name, help, labels, nil)
}

// metricDescs describes all metrics. No label ever holds an address or a
// port: detail per connection is what conns is for.
type metricDescs struct {
	build, mode, flows, flowsTotal, stalls, decisions, fallbacks, demotions, handshake, bytes, copied,
	memory, memoryLimit, shares, peers, services, mapEntries, mapCapacity, heartbeat,
	deviceUp, deviceEvents, panics,
	dgramFlows, dgramFlowsTotal, dgramBytes, dgrams, dgramsDropped, dgramNative, dgramQueries *prometheus.Desc
}

func newMetricDescs() metricDescs {
	return metricDescs{
		build:           desc("build_info", "Version of the gateway; always 1.", "version", "go", "kernel"),
		mode:            desc("mode", "1 for the mode in force, 0 for the others.", "mode"),
		flows:           desc("flows", "Connections carried now.", "carrier"),
		flowsTotal:      desc("flows_total", "Connections carried since the start.", "carrier"),
		stalls:          desc("stalls_total", "Connections reset because they stood still by the fault of a gateway.", "carrier"),
		decisions:       desc("decisions_total", "Decisions of the policy about new connections.", "action", "rule"),
		fallbacks:       desc("fallbacks_total", "Connections that stayed or became native.", "reason", "side"),
		demotions:       desc("demotions_total", "Connections that left a carrier and went on over the relay.", "carrier", "reason"),
		handshake:       desc("handshake_duration_seconds", "Time from the accepted SYN-ACK to the first byte carried.", "carrier"),
		bytes:           desc("bytes_total", "Application bytes carried.", "carrier", "direction"),
		copied:          desc("copy_bytes_total", "Bytes copied to carry connections, by the gateway and by the kernel for it.", "carrier"),
		memory:          desc("registered_memory_bytes", "Memory of rings and buffers.", "kind"),
		memoryLimit:     desc("memory_limit_bytes", "Hard limit of the memory of rings and buffers."),
		shares:          desc("peer_share_refused_total", "How often a peer wanted more than its share of a resource.", "resource"),
		peers:           desc("peers", "Known peers.", "state"),
		services:        desc("auto_services", "Services that rules with action auto know, by what happens to new connections.", "verdict"),
		mapEntries:      desc("ebpf_map_entries", "Entries in an eBPF map.", "map"),
		mapCapacity:     desc("ebpf_map_capacity", "Most entries an eBPF map can hold.", "map"),
		deviceUp:        desc("device_up", "1 for a configured RDMA device that is active, 0 for the others.", "device"),
		deviceEvents:    desc("device_events_total", "What happened in an RDMA device: packets, retransmissions, errors.", "device", "event"),
		panics:          desc("panics_total", "Internal errors that ended one connection each."),
		dgramFlows:      desc("dgram_flows", "Pairs of UDP ends between which datagrams are carried now.", "carrier"),
		dgramFlowsTotal: desc("dgram_flows_total", "Pairs of UDP ends between which datagrams were carried since the start.", "carrier"),
		dgramBytes:      desc("dgram_bytes_total", "Bytes in carried datagrams.", "carrier", "direction"),
		dgrams:          desc("dgrams_total", "Datagrams that were steered to the gateway or came from peers.", "direction", "result"),
		dgramsDropped:   desc("dgrams_dropped_total", "Datagrams that were lost in the gateway.", "cause"),
		dgramNative:     desc("dgram_native_total", "Pairs of UDP ends that stayed or became native.", "reason"),
		dgramQueries:    desc("dgram_queries_total", "Messages on the datagram port.", "result"),
		heartbeat:       desc("datapath_heartbeat_timestamp_seconds", "When the datapath last showed that it lives."),
	}
}

// collector turns snapshots into metrics, one snapshot per scrape.
type collector struct {
	src   MetricsSource
	build VersionInfo
	descs metricDescs
	bound boundDescs
}

// newCollector returns a collector of src.
func newCollector(src MetricsSource, version string) *collector {
	return &collector{src: src, build: NewVersionInfo(version), descs: newMetricDescs(), bound: newBoundDescs()}
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	d := c.descs
	for _, desc := range []*prometheus.Desc{
		d.build, d.mode, d.flows, d.flowsTotal, d.stalls, d.decisions, d.fallbacks, d.demotions, d.handshake, d.bytes, d.copied,
		d.memory, d.memoryLimit, d.shares, d.peers, d.services, d.mapEntries, d.mapCapacity, d.heartbeat, d.deviceUp, d.deviceEvents, d.panics,
		d.dgramFlows, d.dgramFlowsTotal, d.dgramBytes, d.dgrams, d.dgramsDropped, d.dgramNative, d.dgramQueries,
	} {
		ch <- desc
	}
	c.bound.describe(ch)
}

// emitter sends metrics of one scrape.
type emitter struct{ ch chan<- prometheus.Metric }

func (e emitter) gauge(d *prometheus.Desc, v float64, labels ...string) {
	e.ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
}

func (e emitter) counter(d *prometheus.Desc, v uint64, labels ...string) {
	e.ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
}

// Collect implements prometheus.Collector.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	s, d, e := c.src.Snapshot(), c.descs, emitter{ch}
	e.gauge(d.build, 1, c.build.Version, runtime.Version(), c.build.Kernel)
	for _, m := range config.Modes() {
		e.gauge(d.mode, boolValue(m == s.Mode), string(m))
	}
	c.collectFlows(s, e)
	c.collectDatagrams(s, e)
	c.bound.collect(s.Bounds, e)
	for kind, n := range s.Memory {
		e.gauge(d.memory, float64(n), kind)
	}
	e.gauge(d.memoryLimit, float64(s.MemoryLimit))
	for r, n := range s.SharesRefused {
		e.counter(d.shares, n, r)
	}
	for _, state := range peerStates() {
		e.gauge(d.peers, float64(s.Peers[state]), string(state))
	}
	for _, v := range serviceVerdicts() {
		e.gauge(d.services, float64(s.Services[v]), string(v))
	}
	for _, m := range s.Maps {
		e.gauge(d.mapEntries, float64(m.Entries), m.Map)
		e.gauge(d.mapCapacity, float64(m.Capacity), m.Map)
	}
	for i := range s.Devices {
		dev := &s.Devices[i]
		e.gauge(d.deviceUp, boolValue(dev.State == DeviceActive), dev.Name)
		for event, n := range dev.Counters {
			e.counter(d.deviceEvents, n, dev.Name, event)
		}
	}
	e.counter(d.panics, s.Panics)
	if !s.Heartbeat.IsZero() {
		e.gauge(d.heartbeat, float64(s.Heartbeat.UnixMilli())/1000)
	}
}

// collectFlows sends what is counted per connection.
func (c *collector) collectFlows(s Snapshot, e emitter) {
	d := c.descs
	for carrier, n := range withKeys(s.Flows) {
		e.gauge(d.flows, float64(n), string(carrier))
	}
	for carrier, n := range withKeys(s.FlowsTotal) {
		e.counter(d.flowsTotal, n, string(carrier))
	}
	for carrier, n := range withKeys(s.Stalls) {
		e.counter(d.stalls, n, string(carrier))
	}
	for carrier, n := range withKeys(s.BytesTotal) {
		e.counter(d.bytes, n.Tx, string(carrier), "tx")
		e.counter(d.bytes, n.Rx, string(carrier), "rx")
	}
	for carrier, n := range s.CopiedBytes() {
		e.counter(d.copied, n, string(carrier))
	}
	for _, n := range s.Decisions {
		e.counter(d.decisions, n.Count, string(n.Action), n.Rule)
	}
	for _, n := range s.Demotions {
		e.counter(d.demotions, n.Count, string(n.Carrier), n.Reason)
	}
	for _, n := range s.Fallbacks {
		e.counter(d.fallbacks, n.Count, n.Reason, string(n.Side))
	}
	for carrier, h := range s.Handshakes {
		e.ch <- prometheus.MustNewConstHistogram(d.handshake, h.Count, h.Sum, h.Buckets, string(carrier))
	}
}

func boolValue(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// metricsHandler serves the gateway's metrics and those of its process. A
// snapshot with two series of one name and labels costs that scrape, reported
// as an error, and nothing else.
func metricsHandler(src MetricsSource, version string) http.Handler {
	reg := prometheus.NewRegistry()
	reg.MustRegister(
		newCollector(src, version),
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	)
	return promhttp.HandlerFor(reg, promhttp.HandlerOpts{EnableOpenMetrics: true, MaxRequestsInFlight: 4})
}

// metricsMux routes the metrics listener: nothing else is served over TCP.
func metricsMux(metrics http.Handler) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", metrics)
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte("ok\n"))
	})
	return mux
}
