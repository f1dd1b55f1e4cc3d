// Package rdmacm asks the kernel's communication manager for the path to an address. It writes the commands of
// /dev/infiniband/rdma_cm itself (include/uapi/rdma/rdma_user_cm.h) and needs no library.
//
// On InfiniBand only the subnet administrator knows the path to an IP address, and the kernel can ask it. Connections
// are made elsewhere (rsocket/cm/kernel), through the same file with further commands.
//
// Encoding of commands and parsing of answers are pure functions on bytes (command.go, event.go, query.go, qp_attr.go).
// A File is the shell: one open file, which is one queue of events.
//
// # Traps
//
// The kernel accepts commands only from threads with the credentials that opened the file (ib_safe_file_access): after
// a thread has changed its credentials, even to the same ones, the answer is EACCES. A program whose threads differ in
// credentials must lock the goroutine that uses a File or Resolve to its thread.
//
// All numbers are in host byte order except P_Keys and the contents of addresses and path records. A command contains
// the address to which the kernel writes its answer, so that memory is pinned until the command returns.
package rdmacm
