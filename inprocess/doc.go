// Package inprocess is the contract of the in-process way: the layout of the memory that two processes and their
// broker share, the records of the broker's socket, and the reasons for which a connection is native.
// docs/protocol/in-process.md is the text to it, lib/layout.h the same for C; a test compares the numbers.
//
// Everything stays on one host, so numbers are in host byte order.
package inprocess
