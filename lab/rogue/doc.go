// Package rogue plays a peer gateway that breaks the rules: it gets through the
// handshake as every gateway does, and what it says and writes afterwards is up to
// a test.
//
// It exists because no real gateway can be made to send a forged record, immediate
// or packet. A [Wire] is a TCP connection made by hand on a raw socket, with offer
// and confirm; [Wire.Propose] and [Wire.Confirm] negotiate; a [Carrier] is a queue
// pair on a device of its own, with memory that the other side may write to and
// whatever work requests a test wants; [Memory] is what a process shares with a
// gateway that it has met on shm, to be spoiled.
//
// The trap: the kernel knows nothing of the connection and would reset it. A test
// that uses a Wire has the host drop the resets of its kernel first: see [Quiet].
package rogue
