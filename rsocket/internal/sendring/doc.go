// Package sendring is the send buffer of a connection, filled by one goroutine and emptied by another.
//
// It is apart from rsocket because its two sides are: the endpoint posts from it, and the sockets of rsocket/socket fill
// it without the endpoint's owner. It copies nothing and waits for nothing.
//
// The trap: each method belongs to one of the two sides, as its comment says; the other side's may not be called.
package sendring
