// Package debian runs a whole Debian 12, with its systemd as the first process, on a
// simulated host: what packages, units and their scripts do is tested where they are
// used.
//
// [Build] makes the Debian of packages, once, in the cache directory of package guest.
// [Start] unpacks it and starts its systemd in namespaces of its own (processes, mounts,
// IPC, control groups) and in the host's network: it has the kernel of this machine, and
// is there in a few seconds. It knows nothing about smcgw.
//
// The trap: a program that [System.Run] starts is in no control group of the system;
// what a gateway is to carry has to be started on the host, whose control group is the
// root of the system's.
package debian
