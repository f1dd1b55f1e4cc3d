// Package host is the machine below a gateway, as interfaces: the steering of segments,
// the sockets that face local applications, and the loop they report to. A real host
// implements them with package ebpf and the kernel, an in-memory host with models. It
// holds no state. The trap: what is called on a loop must not wait.
package host
