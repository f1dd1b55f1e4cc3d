// Package inspect examines eBPF on this host: whether the kernel has the features that the programs need, what is
// attached where a gateway attaches, and which programs and maps of gateways exist.
//
// It serves tools that examine a host with or without a gateway. It loads small programs to test features, attaches
// nothing, and changes nothing.
//
// The kernel shows names of programs only to CAP_SYS_ADMIN. Network devices are those of the namespace of the calling
// thread.
package inspect
