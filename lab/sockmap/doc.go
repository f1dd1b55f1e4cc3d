// Package sockmap puts connections into eBPF socket maps, as programs do that shorten the path between sockets of one
// host, or look at what a server receives.
//
// It knows nothing about smcgw.
package sockmap
