// Package monitoring tests how operators watch a gateway, with the programs that they use: the alert rules with
// promtool, the dashboard's queries on a Prometheus that scrapes two gateways under load, and the status page in a
// browser.
package monitoring
