// Package netdev tells what kinds of network devices there are, which of them lead to the
// peers of a policy, and their settings.
//
// It exists so that this can be told without programs and maps. Its functions are called on
// a thread of the namespace that they are about.
package netdev
