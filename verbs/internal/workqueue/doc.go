// Package workqueue is what the work queues of software devices have in common:
// the ring of posted sends, the posted receives of a queue pair or of a shared
// receive queue, and the arithmetic of the latter. What a device does with a work
// request is its own. The trap: nothing here locks; a queue belongs to the loop that
// drives it.
package workqueue
