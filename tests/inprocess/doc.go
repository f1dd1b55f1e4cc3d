// Package inprocess tests libsmcgw.so with programs that also run natively for comparison: what calls do, every byte of
// random streams, ends that are killed, peers that write nonsense.
package inprocess
