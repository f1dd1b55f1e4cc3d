// Package domain is what protection domains have in common: they count what was made in
// them, and close when nothing is left.
//
// It exists because a device is called by any goroutine to make something, while another
// one closes the domain. The trap: Close holds the lock while it frees.
package domain
