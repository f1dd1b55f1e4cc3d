// Package report is what a gateway reports about itself: the terms for what it does, and what
// operators see of a connection, a peer, a device, and all of them together, each under the
// one name that it has in documents, metrics and pages.
//
// It is a leaf: it only receives. The parts of a gateway report to it, and packages admin and
// page pass that on.
//
// The trap: other people's scripts and dashboards use the names, so a name must keep its
// meaning.
package report
