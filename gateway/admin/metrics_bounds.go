package admin

import (
	"github.com/prometheus/client_golang/prometheus"
)

// Bounds is the fill of what bounds a gateway, and what was turned away there,
// beside memory and the eBPF maps.
type Bounds struct {
	// Flows is how many connections may be carried now: limits.max_flows, or less
	// where the process may not have as many descriptors.
	Flows int
	// WireLegs counts connections of the wire TCP by state: open, half_open, dead.
	WireLegs map[string]int
	// Wire counts what happened in the wire TCP, Datapath what did in the programs
	// and the queues of the TUN devices, by name.
	Wire, Datapath map[string]uint64
	// LogDropped counts lines of the log that nobody took.
	LogDropped uint64
}

// boundDescs describes the metrics of Bounds.
type boundDescs struct{ flowLimit, wireLegs, wire, datapath, logDropped *prometheus.Desc }

func newBoundDescs() boundDescs {
	return boundDescs{
		flowLimit:  desc("flow_limit", "Most connections that may be carried at once."),
		wireLegs:   desc("wire_legs", "Connections of the wire TCP.", "state"),
		wire:       desc("wire_events_total", "What happened in the wire TCP.", "event"),
		datapath:   desc("datapath_events_total", "What the programs and the queues of the TUN devices did with packets.", "event"),
		logDropped: desc("log_dropped_total", "Lines of the log that nobody took."),
	}
}

func (d boundDescs) describe(ch chan<- *prometheus.Desc) {
	for _, desc := range []*prometheus.Desc{d.flowLimit, d.wireLegs, d.wire, d.datapath, d.logDropped} {
		ch <- desc
	}
}

// collect sends them.
func (d boundDescs) collect(b Bounds, e emitter) {
	e.gauge(d.flowLimit, float64(b.Flows))
	e.counter(d.logDropped, b.LogDropped)
	for state, n := range b.WireLegs {
		e.gauge(d.wireLegs, float64(n), state)
	}
	for event, n := range b.Wire {
		e.counter(d.wire, n, event)
	}
	for event, n := range b.Datapath {
		e.counter(d.datapath, n, event)
	}
}
