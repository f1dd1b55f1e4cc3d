// Package link connects gVisor's stacks to sources and sinks of packets: a [TUN] with offloads.
//
// The package knows IP packets but no connections. A [Link] belongs to one stack, which must detach it before it ends,
// and stop it after everything has been written.
package link
