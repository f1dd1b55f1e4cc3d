// Package link is where the packets of gVisor's stacks come from and go to: a [TUN] with offloads, a [Wire] in memory
// with seeded faults, and a [Pipe] to functions.
//
// The package knows IP packets and no connection. The trap: a [Link] belongs to one stack, which detaches it before it
// ends and stops it after what was written.
package link
