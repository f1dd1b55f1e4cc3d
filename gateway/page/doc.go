// Package page shows a gateway to people: one page of HTML that a browser without any
// access to the network can show, with the last minutes of what the gateway did. It reads
// what every operator may read and changes nothing. It shows the same to Prometheus: the
// numbers of package report, read from one snapshot per scrape.
package page
