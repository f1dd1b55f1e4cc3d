// Package host abstracts the machine below a gateway: the steering of segments, the sockets that face local
// applications, and the loop that they report to. A real host implements its interfaces with package ebpf and the
// kernel, an in-memory host with models. The package holds no state. The trap: what is called on a loop must not block.
package host
