// Package vector drives one completion vector of a device for the goroutines that use it: its driver, its completion
// queue, and the owners of its queue pairs.
//
// A vector has a goroutine of its own, which sleeps until something arrives. A goroutine that waits for its queue pair
// polls meanwhile, and one that posts drives the vector itself; the token says which of them does. The package knows
// nothing of streams and datagrams. The trap: what is said to belong to the holder of the token may be touched by it only.
package vector
