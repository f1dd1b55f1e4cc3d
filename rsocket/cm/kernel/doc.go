// Package kernel makes RDMA connections by the kernel's communication manager, as package cm does by one of its own.
//
// It exists because on an adapter queue pair 1 belongs to the kernel: package cm, which needs it, cannot run there. The
// kernel's manager sends the same datagrams, so peers see no difference. It moves no data and makes no queue pair: the
// kernel says which attributes a queue pair must get (INIT_QP_ATTR), and the verbs device sets them. Of the queue pair
// the kernel learns the number only, so device and manager need not share a context.
//
// # Shape
//
// Commands and what the kernel answers are bytes in and bytes out (command.go, event.go, addr.go, and package rdmacm,
// which has the open file: a queue of events). A Manager has one goroutine that takes the events and gives each to the
// identifier that it names.
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
// Those of package rdmacm. A program whose threads differ in credentials locks the goroutines that use a Manager to a
// thread.
//
// A listener without an address hears requests that arrive by any adapter of the host. Those for another one than the
// Manager's are refused.
package kernel
