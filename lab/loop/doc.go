// Package loop drives vectors of RDMA devices for programs of the laboratory and
// for tests, which have no event loop of their own.
//
// It is kept simple: a goroutine for each vector that sleeps in epoll, and functions
// that run in it. What the gateway and the rsocket library drive vectors with is
// made for their data paths.
//
// The trap: Do called in the loop itself waits for ever.
package loop
