// Package queues is what the queues of all devices have in common: completion queues, which grow up to their depth and
// can be armed, the ring of posted sends, the posted receives of a queue pair or shared receive queue, the limits of
// these, and the user counts that keep a queue or domain open. How a work request is executed, and what happens when a
// completion queue is full, is up to the device.
//
// The trap: only Users locks, and its Close holds the lock while it frees; the queues belong to the loop that drives
// them.
package queues
