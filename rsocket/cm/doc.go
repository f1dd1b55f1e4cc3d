// Package cm is a communication manager for RDMA: it connects queue pairs by management datagrams. It interoperates with the Linux kernel's ib_cm and rdma_cm, and so with everything that
// uses librdmacm.
//
// A queue pair must be told its peer's number, sequence number and address before it can do anything, and programs want
// to say "port 7471 at this address" as they do with sockets. The package does not create, fill or close queue pairs
// and does not move data. It supports neither alternate paths nor IB routing: a peer is reached by its IP address
// (RoCEv2).
//
// # The exchange
//
// All messages are datagrams of 256 bytes between the queue pairs 1 of two
// devices, over UD (IBTA vol. 1, chapter 12; the formats are in its chapter 16
// and its annex A11):
//
//	   Dial                                               Listen
//	                                                      Accept
//	queue pair in INIT
//	   │  REQ  service, address header, QPN, PSN,            │
//	   │       path MTU, timers, private data                │
//	   ├────────────────────────────────────────────────────►│ Request
//	   │                                                     │
//	   │  MRA  (if the REQ is repeated meanwhile)            │
//	   │◄────────────────────────────────────────────────────┤ Request.Accept:
//	   │                                                     │ queue pair to RTR, RTS
//	   │  REP  QPN, PSN, private data                        │
//	   │◄────────────────────────────────────────────────────┤
//	queue pair to RTR, RTS                                   │
//	   │  RTU                                                │
//	   ├────────────────────────────────────────────────────►│ Conn
//	  Conn                                                   │
//	   ·  data, between the queue pairs themselves           ·
//	   ·                                                     ·
//	Disconnect: queue pair to ERR                            │
//	   │  DREQ                                               │
//	   ├────────────────────────────────────────────────────►│ Conn.Done
//	   │  DREP                                               │
//	   │◄────────────────────────────────────────────────────┤ Disconnect: queue
//	timeWait                                              timeWait  pair to ERR
//
// A REJ with a reason replaces the REP or, if the dialer cannot go on, the RTU. Every question is repeated until it is
// answered, and every repeated question is answered again; a REQ repeated after it was refused is a new one. Messages
// for a connection that no longer exists are answered, so that the peer need not wait. If a peer asks with a queue pair
// that we believe connected, it has lost its state: the request is refused as stale and the old connection ends. Dial
// expects that and tries again.
//
// No datagram service can be found by SIDR_REQ: datagram rsockets find each other by themselves. It is answered that
// there is none.
//
// # Shape
//
// The type core is the protocol: datagrams, time and the application's requests go in, datagrams come out. It has no
// goroutine, clock or lock. Manager is the shell around it: queue pair 1 in the loop of a vector, one goroutine that
// receives and one for timers. Nothing here is a hot path.
//
//	Dial, Accept, … ─┐             ┌─► out ─► gsi.send ─► queue pair 1
//	                 ├─► core ─────┤
//	gsi.receive ─────┤  (mu held)  └─► changed, done ─► the caller that waits
//	timers ──────────┘
//
// # What peers can do
//
// Any host that can send UDP can send these datagrams; they contain no secret. Only datagrams from a queue pair 1 are
// accepted, the addresses inside a request must match its source and destination, ids are random, and a host that is
// not the peer of a connection cannot act for the peer unless it forges addresses. All tables, queues and buffers are
// bounded.
//
// The trap: the manager's goroutines wait for the loop of its vector, and Dial, Accept and Disconnect wait for that of
// the queue pair. None of them may be called in a loop; methods that a loop may call say so.
package cm
