// Package netdev tells what kinds of network devices there are, which of them lead to the
// peers of a policy, their settings, and that any of that has changed.
//
// It exists so that this can be told without programs and maps. Its functions are called on
// a thread of the namespace that they are about. A list of the kernel that changes while it
// is read is read again ([Whole]).
package netdev
