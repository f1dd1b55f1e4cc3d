// Package rdmacm asks the kernel's communication manager for the way to an address. It writes the commands of
// /dev/infiniband/rdma_cm itself (include/uapi/rdma/rdma_user_cm.h) and needs no library.
//
// It exists because on InfiniBand nobody but the subnet administrator knows the path to an IP address, and the kernel
// asks it. Connections are made elsewhere (rsocket/cm/kernel), by the same file with commands of their own.
//
// Commands and what the kernel answers are bytes in and bytes out (command.go, event.go, query.go, qp_attr.go). A File is
// the shell: one open file, which is one queue of events.
//
// # Traps
//
// The kernel takes commands only from threads with the credentials that opened the file (ib_safe_file_access): after a
// thread has changed its own, even to the same, the answer is EACCES. A program whose threads differ in credentials
// locks the goroutine that uses a File or Resolve to its thread.
//
// All numbers are in the byte order of the host but P_Keys and what is inside of addresses and path records. Where the
// kernel writes an answer is an address inside the command, so the memory is pinned until the command returns.
package rdmacm
