// Package page shows a gateway to people: one HTML page with the last minutes of the gateway,
// which a browser can display without any network access. It reads what every operator may
// read and changes nothing. It also serves Prometheus: the numbers of package report, read
// from one snapshot per scrape.
package page
