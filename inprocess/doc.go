// Package inprocess defines what libsmcgw.so, its peers and the broker share: the layout of shared memory, the records
// of the broker's socket, and the reasons for which a connection is native. docs/protocol/in-process.md specifies all
// of it, lib/layout.h is the same for C, and a test compares the numbers.
//
// Everything stays on one host, so numbers are in host byte order.
package inprocess
