// Package cm is the communication manager of RDMA: it connects queue pairs by
// management datagrams, and finds the queue pair of a datagram service. It
// speaks with the Linux kernel's ib_cm and rdma_cm, and so with everything that
// uses librdmacm.
//
// It exists because a queue pair has to be told its peer's number, sequence
// number and address before it can do anything, and because programs want to
// say "port 7471 at this address" as they do with sockets. It does not create,
// fill or close queue pairs, does not move data, and knows neither alternate
// paths nor IB routing: the way to a peer is its IP address (RoCEv2).
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
// A REJ with a reason takes the place of the REP or, if the dialer cannot go
// on, of the RTU. Every question is repeated until it is answered, every answer
// is given again when the question is repeated; a REQ that is repeated after it
// was refused is a new one. What arrives for a connection that is no more is
// answered so that the peer need not wait. A peer that asks with a queue pair
// that we believe connected has lost its memory: it is refused as stale and the
// old connection ends; Dial knows that and tries again.
//
// A datagram service needs no connection: SIDR_REQ names the service, SIDR_REP
// the queue pair and its Q_Key (ResolveUD, ListenUD).
//
// # Shape
//
// The protocol is the type core: datagrams, time and the application's wishes
// go in, datagrams come out; it has no goroutine, clock or lock. Manager is the
// shell around it: queue pair 1 in the loop of a vector, a goroutine that takes
// what arrives and one that lets time pass. Nothing here is a hot path.
//
//	Dial, Accept, … ─┐             ┌─► out ─► gsi.send ─► queue pair 1
//	                 ├─► core ─────┤
//	gsi.receive ─────┤  (mu held)  └─► changed, done ─► the caller that waits
//	timers ──────────┘
//
// # What peers can do
//
// Any host that can send UDP can send these datagrams; there is no secret in
// them. Only datagrams of a queue pair 1 are heard, the addresses inside a
// request must be those it came from and to, ids are random, and a host that is
// not the peer of a connection cannot speak for it unless it forges addresses.
// All tables, queues and buffers are bounded.
//
// The trap: the manager's goroutines wait for the loop of its vector, and Dial,
// Accept and Disconnect for that of the queue pair. None of them may be called
// in a loop; what a loop may call says so.
package cm
