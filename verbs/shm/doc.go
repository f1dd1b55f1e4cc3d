// Package shm is the RDMA device for gateways under one kernel: what an RNIC does by DMA, it does by writing into
// memory that both sides have mapped.
//
// Two containers or namespaces of one host need no network between them: a WRITE is a copy, or costs nothing where the
// payload was written in place through verbs.RemoteMapper. The device does not protect two gateways from reading or
// corrupting each other's shared memory: the unit of isolation is the peer, which reaches only the memory shared with
// it.
//
// # Peers
//
// A Peer is another device that shares memory with this one. A device that listens makes an Offer, a pending peer with
// memory of its own, whose name and key reach the other side by other means (CLC); that side calls Attach. Many flows
// share the peer. Its PD makes memory regions and queue pairs. Two gateways that offer to each other share two
// independent peers: the key of a flow tells which one it uses. The socket of the rendezvous stays open: when it hangs
// up, the peer is down, its queue pairs are in ERR and everything posted is flushed: within milliseconds if its process
// has ended (ErrDied), after a moment if the process lives on (ErrHungUp, died.go).
//
// # Memory
//
// Each side of a peer owns one sealed memfd, mapped by both:
//
//	header            epoch of the owner, acknowledgements of the other side
//	vector areas      armed flag, summary, ready bitmap: what is ready
//	queue pair table  where the block of a queue pair is, or its vector (UD)
//	memory region table
//	datagram rings    one from each vector of the other side to each of the owner
//	arena             queue pair blocks (entry ring), AllocMR memory
//
// Everything that the other side can write is read once and range-checked. An impossible value ends that peer and
// nothing else.
//
// Memory of a closed queue pair or region is reused only after every driven vector of the peer has passed a Progress
// since: by then the peer has seen the invalid key or the dead queue pair and holds no span of it (grace.go). A
// goroutine returns its pages to the system; until then it counts as used.
//
// # Operations
//
// The device supports the operations that gateways use, WRITE and WRITE_WITH_IMM on RC, SEND and SEND_WITH_IMM on UD,
// and refuses the rest: see Ops of its attributes.
//
// The requester executes a WRITE in the peer's memory when it issues it, and it is then finished: nothing is ever in
// flight, and a fence has nothing to wait for. The responder announces its receives, and the requester spends them: a
// WRITE_WITH_IMM that finds one appends an entry to the ring of its partner.
//
// UD datagrams (datagram.go) reach any UD queue pair of the same peer; the contents of address handles are ignored. A
// datagram that cannot be delivered immediately is dropped and counted. There is no general services interface, since
// there are no addresses to manage.
//
// # Doorbells
//
// There is one eventfd per peer, vector and direction. A publisher sets the ready bit of the queue pair, for datagrams
// that of its own vector. It rings the bell only if the peer's loop has armed itself: for bytes immediately, for messages
// without any once per Flush.
//
// The trap: an eventfd's O_NONBLOCK flag is shared with the peer. The device sets it and checks that it was given an
// eventfd. A peer that clears the flag and fills the counter on purpose stalls a ringing goroutine for a moment, until
// the warden notices and ends that peer (warden.go).
package shm
