// Package loop drives vectors of RDMA devices for programs of the laboratory and for tests, which have no event loop of
// their own.
//
// It is deliberately simple: one goroutine per vector that sleeps in epoll, and functions that run in it. The gateway
// and the rsocket library drive vectors with code made for their data paths.
//
// Calling Do in the loop itself deadlocks.
package loop
