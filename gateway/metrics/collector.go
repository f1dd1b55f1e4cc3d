package metrics

import (
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/smcgw/smcgw/gateway/report"
)

// collector turns snapshots into metrics, one snapshot per scrape.
type collector struct {
	src   report.Source
	table []metric
	now   func() time.Time
}

// newCollector returns a collector of src.
func newCollector(src report.Source, build report.VersionInfo) *collector {
	return &collector{src: src, table: metricTable(build), now: time.Now}
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	for i := range c.table {
		ch <- c.table[i].desc
	}
}

// Collect implements prometheus.Collector.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	now := c.now() // a snapshot walks maps, which takes its time
	s := c.src.Snapshot()
	for i := range c.table {
		m := &c.table[i]
		m.read(&s, emitter{m, ch, now})
	}
}

// emitter sends the series of one metric.
type emitter struct {
	m  *metric
	ch chan<- prometheus.Metric
	// now is when the snapshot was begun.
	now time.Time
}

func (e emitter) value(v float64, labels ...string) {
	e.ch <- prometheus.MustNewConstMetric(e.m.desc, e.m.kind, v, labels...)
}

func (e emitter) histogram(h report.HistogramSnapshot, labels ...string) {
	e.ch <- prometheus.MustNewConstHistogram(e.m.desc, h.Count, h.Sum, h.Buckets, labels...)
}

// Handler serves the gateway's metrics and those of its process. A
// snapshot with two series of one name and labels costs that scrape, reported
// as an error, and nothing else.
func Handler(src report.Source, build report.VersionInfo) http.Handler {
	return handler(newCollector(src, build))
}

func handler(c *collector) http.Handler {
	reg := prometheus.NewRegistry()
	reg.MustRegister(
		c,
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	)
	return promhttp.HandlerFor(reg, promhttp.HandlerOpts{EnableOpenMetrics: true, MaxRequestsInFlight: 4})
}
