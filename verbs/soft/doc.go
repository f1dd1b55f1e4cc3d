// Package soft is an RDMA device in user space: RoCEv2 over UDP sockets, wire
// compatible with the Linux kernel's rxe and with RoCE adapters. It needs no
// kernel module, no hardware and no privilege beyond a UDP socket.
//
// It exists so that two machines without RDMA adapters can speak RDMA to each
// other, and to those that have one. It knows one port, the default partition (for
// others see Protect), RC, UC, UD and the general services queue pair; no memory
// windows, no multicast, no automatic path migration.
//
// # Shape
//
// The engine does no input or output of its own. It takes datagrams and the
// time from its driver, changes memory, queues completions, and leaves
// datagrams in a transmitter; a link carries them: sockets, or a simulated wire
// in tests. A vector, its sockets and its queue pairs belong to one loop; there
// is no lock on the data path, and nothing allocates.
//
//	  PostSend ─► requester ─┐                    ┌─► responder ─► memory, recv CQ
//	                         ├─► transmitter ─► link ─► demux
//	memory ◄──── responder ──┘      trains        └─► completer ─► send CQ
//
// Datagrams leave in trains that the kernel cuts (UDP_SEGMENT) and arrive in
// trains that it merged (UDP_GRO). Payload is gathered from the registered
// memory by the system call and copied once on receipt. The lowest bits of a
// queue pair's number name its vector: they choose the source port a peer sends
// from, so that a merged train is for one vector, and the socket it arrives at.
// The other bits, and all of a key, are random.
//
// # What is verified on receipt
//
// The kernel verifies the UDP checksum where the sender set one (we always do).
// Then in this order: form and opcode; that the queue pair exists, is of the
// packet's transport and receives; P_Key; for RC and UC that source and
// destination address are those of the connection, for UD the Q_Key; the ICRC.
// Over IPv6 all 32 bits of it count. Over IPv4 it covers the identification, a
// field that a socket does not see: the packet is accepted if any value of it
// explains the ICRC, which leaves 16 bits of check (see package wire). What
// fails is counted and dropped in silence.
//
// A request reaches memory only by the key of a region of the queue pair's own
// protection domain, within its bounds and rights, and only if the queue pair
// grants the operation too.
//
// A host that can send with the peer's address has to guess the rest. Protect
// makes that harder, for two devices of this package; by default a queue pair
// does what the standard says.
//
// # Network manners
//
// A sender has a congestion window: it starts small, grows with every
// acknowledgement, shrinks on loss, on RNR and on CNP (congestion.go). The
// retransmission timer follows the round trip; a queue pair's Timeout and
// RetryCnt say how long a silent peer is waited for, not how often it is asked.
// READ requests are cut so that their responses obey the window too. UC and UD
// have no feedback and no window, as everywhere.
//
// The trap: completions of UD and UC sends mean that the datagram was given to
// the kernel, no more, and a full completion queue loses completions and takes
// its queue pairs down, as libibverbs has it.
package soft
