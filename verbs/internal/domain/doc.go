// Package domain is what protection domains have in common, and completion queues of
// adapters: they count what was made of them, and close when nothing is left.
//
// It exists because a device is called by any goroutine to make something, while another
// one closes what it is made of. The trap: Close holds the lock while it frees.
package domain
