// Package cm is the communication manager of RDMA: it connects queue pairs by
// datagrams on queue pair 1, as the Linux kernel's ib_cm and rdma_cm do, and
// resolves services to datagram queue pairs.
package cm
