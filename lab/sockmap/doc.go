// Package sockmap puts connections into socket maps of eBPF, as programs do that
// shorten the way between sockets of one host, or look at what a server receives.
//
// It knows nothing about smcgw.
package sockmap
