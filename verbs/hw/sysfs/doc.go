// Package sysfs reads what the kernel reports about RDMA adapters: devices, ports, GIDs and their types, drivers,
// device nodes, limits of control groups, and what the network of a port promises (DCB).
//
// All of that is available without libibverbs: a static program can report which adapters a host has, why one cannot be
// used, and for which addresses an adapter takes UDP port 4791. The package opens no device and changes nothing.
//
// The trap: a GID table has holes, and may have the same address several times, as RoCE v1 and as RoCE v2. Identify a
// GID by its index, never by its position in a list.
package sysfs
