// Package report is what a gateway tells: the words for what it does, and what is told of a
// connection, a peer, a device and of all of them together, each with the one name that it
// has in documents, metrics and pages.
//
// It is a leaf: it reads nothing and asks nobody. What a gateway does it is told by those
// that do it, and package admin and the packages of the pages pass it on.
//
// The trap: scripts and dashboards of others use the names, so a name keeps its meaning.
package report
