// Package sysfs reads what the kernel tells of RDMA adapters: devices, ports, GIDs
// and their types, drivers, device nodes, limits of control groups, and what the
// network of a port promises (DCB).
//
// It exists because all of that is known without libibverbs: a static program can
// say which adapters a host has, why one cannot be used, and which addresses have
// lost UDP port 4791 to one. It opens no device and changes nothing.
//
// The trap: a table of GIDs has holes, and the same address twice or more, as RoCE
// v1 and as RoCE v2. A GID is named by its index, never by its place in a list.
package sysfs
