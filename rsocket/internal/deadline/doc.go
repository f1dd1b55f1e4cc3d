// Package deadline ends the operations of one direction of a connection at a time that can be moved, as the deadlines of
// net.Conn do.
//
// It says that the time has passed and wakes what waits; what that is belongs to its user. The trap: wake is called with a
// lock held, and moves no deadline.
package deadline
