// Package rogue plays a peer gateway that breaks the rules. It completes the handshake like any gateway; what it sends
// and writes afterwards is up to a test.
//
// No real gateway can be made to send a forged record, immediate or packet. A [Wire] is a TCP connection made by hand
// on a raw socket, with offer and confirm; [Wire.Propose] and [Wire.Confirm] negotiate. A [Carrier] is a queue pair on
// a device of its own, with memory that the other side may write to, for any work requests that a test wants. [Memory]
// is what a process shares with a gateway that it has met on shm, and can spoil.
//
// The kernel does not know the connection and would reset it. So a test that uses a Wire must make the host drop the
// resets of its kernel first: see [Quiet].
package rogue
