package page

import (
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/smcgw/smcgw/gateway/report"
)

// collector converts snapshots to metrics, one snapshot per scrape.
type collector struct {
	src     report.Source
	numbers []report.Number
	descs   []*prometheus.Desc // in the order of numbers
	now     func() time.Time
}

// newCollector returns a collector of src.
func newCollector(src report.Source, build report.VersionInfo) *collector {
	c := &collector{src: src, numbers: report.Numbers(build), now: time.Now}
	for _, n := range c.numbers {
		c.descs = append(c.descs, prometheus.NewDesc(report.Namespace+n.Name, n.Help, n.Labels, nil))
	}
	return c
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range c.descs {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	now := c.now() // before the snapshot, which takes time to walk maps
	s := c.src.Snapshot()
	for i, n := range c.numbers {
		kind := prometheus.GaugeValue
		if n.Kind == report.Counter {
			kind = prometheus.CounterValue
		}
		n.Read(&s, report.Series{
			Now: now,
			Value: func(v float64, labels ...string) {
				ch <- prometheus.MustNewConstMetric(c.descs[i], kind, v, labels...)
			},
			Times: func(h report.HistogramSnapshot, labels ...string) {
				ch <- prometheus.MustNewConstHistogram(c.descs[i], h.Count, h.Sum, h.Buckets, labels...)
			},
		})
	}
}

// Metrics serves the metrics of the gateway and of its process. A snapshot with two series of
// the same name and labels fails that scrape with an error, and nothing else.
func Metrics(src report.Source, build report.VersionInfo) http.Handler {
	return metricsHandler(newCollector(src, build))
}

func metricsHandler(c *collector) http.Handler {
	reg := prometheus.NewRegistry()
	reg.MustRegister(
		c,
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	)
	return promhttp.HandlerFor(reg, promhttp.HandlerOpts{EnableOpenMetrics: true, MaxRequestsInFlight: 4})
}
