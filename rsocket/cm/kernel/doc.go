// Package kernel makes RDMA connections by the kernel's communication manager, as package cm does with its own, and as
// the same types.
//
// On an adapter, queue pair 1 belongs to the kernel, so package cm, which needs it, cannot run there. The kernel's
// manager sends the same datagrams: peers see no difference. The package moves no data and makes no queue pairs: the
// kernel says which attributes a queue pair must get (INIT_QP_ATTR), and the verbs device sets them. The kernel learns
// only the number of the queue pair, so device and manager need not share a context.
//
// # Shape
//
// Encoding of commands and parsing of answers are pure functions on bytes (command.go, event.go, addr.go, and package
// rdmacm, which has the open file: a queue of events). One goroutine of the Manager receives all events and passes each
// to its identifier.
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
// Those of package rdmacm apply. A program whose threads differ in credentials must lock the goroutines that use a
// Manager to a thread.
//
// A listener without an address receives requests that arrive at any adapter of the host. Those for an adapter other
// than the Manager's are refused.
package kernel
