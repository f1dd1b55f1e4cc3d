// Package inspect looks at what the kernel has for eBPF: features that the programs need,
// what is attached where a gateway attaches, and the programs and maps of gateways.
//
// It exists for tools that examine a host, with or without a gateway. It loads small
// programs that test a feature, attaches nothing, and changes nothing.
//
// The trap: names of programs are shown to CAP_SYS_ADMIN only, and network devices are
// those of the namespace of the calling thread.
package inspect
