// Package monitoring tests what operators watch a gateway by, with the programs they use:
// the alert rules by promtool, the dashboard's queries on a Prometheus that scrapes two
// gateways under load, and the status page in a browser.
package monitoring
