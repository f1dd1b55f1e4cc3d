// Package soft is an RDMA device in user space: RoCEv2 over UDP sockets, wire
// compatible with the Linux kernel's rxe and with RoCE adapters.
package soft
