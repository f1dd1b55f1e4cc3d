// Package link is where the packets of gVisor's stacks come from and go to: a [TUN] with offloads.
//
// The package knows IP packets and no connection. The trap: a [Link] belongs to one stack, which detaches it before it
// ends and stops it after what was written.
package link
