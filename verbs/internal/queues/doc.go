// Package queues is what the queues of devices have in common: completion queues, which
// grow up to their depth and are armed, the ring of posted sends, the posted receives of
// a queue pair or of a shared receive queue, the limits of all, and the users that keep a
// queue or a domain open. What a device does with a work request, or when a completion
// queue is full, is its own.
//
// The trap: nothing here locks but Users, whose Close holds the lock while it frees; a
// queue belongs to the loop that drives it.
package queues
