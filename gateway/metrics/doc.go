// Package metrics is the Prometheus exporter of a gateway: one table with the name, the
// help, the labels and the source of every metric, read from one snapshot per scrape. It
// counts nothing itself. The trap: dashboards and alerts of others use the names, so a
// metric keeps its name and meaning for good.
package metrics
