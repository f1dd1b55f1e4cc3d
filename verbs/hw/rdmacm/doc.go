// Package rdmacm makes RDMA connections by the kernel's communication manager, and asks it for the way to an address. It
// writes the commands of /dev/infiniband/rdma_cm itself (include/uapi/rdma/rdma_user_cm.h) and needs no library.
//
// It exists because on an adapter queue pair 1 belongs to the kernel: verbs/cm, which needs it, cannot run there. The
// kernel's manager sends the same datagrams, so peers see no difference. It moves no data and makes no queue pair: the
// kernel says which attributes a queue pair must get (INIT_QP_ATTR), and the verbs device sets them. Of the queue pair
// the kernel learns the number only, so device and manager need not share a context.
//
// # Shape
//
// Commands and what the kernel answers are bytes in and bytes out (command.go, event.go, query.go, qp_attr.go). The type
// file is the shell: one open file, which is one queue of events. A Manager has one goroutine that takes the events and
// gives each to the identifier that it names.
//
//	Dial                                         Listen
//	CREATE_ID                                    CREATE_ID, BIND, LISTEN
//	RESOLVE_ADDR  ◄ ADDR_RESOLVED
//	RESOLVE_ROUTE ◄ ROUTE_RESOLVED
//	CONNECT ─────────────── REQ ───────────────► CONNECT_REQUEST, with an identifier of its own
//	                                             Request.Accept:
//	                                             INIT_QP_ATTR; queue pair to RTR, RTS
//	CONNECT_RESPONSE ◄───── REP ──────────────── ACCEPT
//	INIT_QP_ATTR; queue pair to RTR, RTS
//	ACCEPT ──────────────── RTU ───────────────► ESTABLISHED
//	 ·                                            ·
//	DISCONNECT ──────────── DREQ ──────────────► DISCONNECTED: DISCONNECT
//	DISCONNECTED ◄───────── DREP ────────────────┘
//	DESTROY_ID                                   DESTROY_ID
//
// # Traps
//
// The kernel takes commands only from threads with the credentials that opened the file (ib_safe_file_access): after a
// thread has changed its own, even to the same, the answer is EACCES. A program whose threads differ in credentials
// locks the goroutine that uses a Manager or Resolve to its thread.
//
// All numbers are in the byte order of the host but P_Keys and what is inside of addresses and path records. Where the
// kernel writes an answer is an address inside the command, so the memory is pinned until the command returns.
//
// A listener without an address hears requests that arrive by any adapter of the host. Those for another one than the
// Manager's are refused.
package rdmacm
