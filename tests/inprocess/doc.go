// Package inprocess tests libsmcgw.so with programs, each of which runs natively beside it: what calls do, every
// byte of streams at random, ends that are killed, peers that write nonsense.
package inprocess
