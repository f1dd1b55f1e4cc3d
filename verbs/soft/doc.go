// Package soft is an RDMA device in user space: RoCEv2 over UDP sockets, wire
// compatible with the Linux kernel's rxe and with RoCE adapters. It needs no
// kernel module, no hardware and no privilege beyond a UDP socket.
//
// Two machines without RDMA adapters can speak RDMA to each other with it, and to machines that have adapters. It has
// one port and the default partition (for others see Protect), and supports RC, UC, UD and the general services queue
// pair; no memory windows, no multicast, no automatic path migration.
//
// # Shape
//
// The engine does no I/O of its own. Its driver passes it datagrams and the time; it changes memory, queues
// completions, and leaves datagrams in a transmitter. A link carries them: sockets, or a simulated wire in tests. A
// vector, its sockets and its queue pairs belong to one loop; the data path takes no lock and does not allocate.
//
//	  PostSend ─► requester ─┐                    ┌─► responder ─► memory, recv CQ
//	                         ├─► transmitter ─► link ─► demux
//	memory ◄──── responder ──┘      trains        └─► completer ─► send CQ
//
// Datagrams are sent in trains that the kernel splits (UDP_SEGMENT) and arrive in trains that it has merged (UDP_GRO).
// The system call gathers payload from the registered memory; on receipt it is copied once. The lowest bits of a queue
// pair's number identify its vector: they choose the source port from which a peer sends, so that a merged train is for
// one vector, and the socket at which it arrives. The other bits, and all of a key, are random.
//
// # What is verified on receipt
//
// The kernel verifies the UDP checksum if the sender set one (we always do). Then, in this order, the device checks:
// form and opcode; that the queue pair exists, has the packet's transport and receives; the P_Key; for RC and UC that
// source and destination address are those of the connection, for UD the Q_Key; the ICRC. Over IPv6 all 32 bits of the
// ICRC count. Over IPv4 it covers the identification, a field that a socket does not see: the packet is accepted if any
// value of it explains the ICRC, which leaves 16 bits of check (see package wire). Packets that fail are counted and
// dropped silently.
//
// A request reaches memory only with the key of a region in the queue pair's own protection domain, within its bounds
// and rights, and only if the queue pair grants the operation too.
//
// A host that can send with the peer's address has to guess the rest. Protect makes that harder, between two devices of
// this package; by default a queue pair follows the standard.
//
// # Network manners
//
// A sender has a congestion window: it starts small, grows with every acknowledgement, and shrinks on loss, on RNR and
// on CNP (congestion.go). The retransmission timer follows the round trip; a queue pair's Timeout and RetryCnt
// determine how long a silent peer is waited for, not how often it is asked. READ requests are split so that their
// responses obey the window too. UC and UD have no feedback and therefore no window.
//
// The trap: a completion of a UD or UC send only means that the datagram was given to the kernel. And a full completion
// queue loses completions and takes its queue pairs down, as with libibverbs.
package soft
