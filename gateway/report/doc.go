// Package report is what a gateway tells of itself: the words for what it does, and what
// operators see of a connection, a peer, a device and of all of them together, each by the
// one name that it has in documents, metrics and pages.
//
// It is a leaf: it only receives. The parts of a gateway tell it what they do, and packages
// admin and page pass that on.
//
// The trap: scripts and dashboards of others use the names, so a name keeps its meaning.
package report
