// Package netdev knows the kinds of network devices, their settings, which of them lead to the peers of a policy, and
// when any of that changes.
//
// It needs neither programs nor maps. Call its functions on a thread of the namespace that they are about. A kernel
// list that changes while it is being read is read again ([Whole]).
package netdev
