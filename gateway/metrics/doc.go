// Package metrics is the Prometheus exporter of a gateway: the numbers of package report,
// read from one snapshot per scrape. It counts nothing itself.
package metrics
