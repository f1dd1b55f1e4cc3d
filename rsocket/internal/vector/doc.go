// Package vector drives one completion vector of a device for the goroutines that use it: its driver, its completion
// queue, and the owners of its queue pairs.
//
// A vector has its own goroutine, which sleeps until something arrives. A goroutine that waits for its queue pair polls
// first, and one that posts drives the vector itself; a token decides which of them drives. The package knows nothing
// of streams and datagrams. The trap: state that belongs to the token holder must not be touched without the token.
package vector
