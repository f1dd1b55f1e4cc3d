// Package debian runs a whole Debian 12, with its systemd as the first process, on a
// simulated host, so that packages, units and their scripts are tested where they are
// used.
//
// [Build] makes the Debian from packages, once, in the cache directory of package guest.
// [Start] unpacks it and starts its systemd in namespaces of its own (processes, mounts,
// IPC, control groups) and in the host's network. It runs on this machine's kernel, and
// is ready within a few seconds. It knows nothing about smcgw.
//
// The trap: a program that [System.Run] starts is in no control group of the system.
// Programs whose connections a gateway is to carry must be started on the host, whose
// control group is the root of the system's.
package debian
