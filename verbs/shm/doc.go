// Package shm is the RDMA device for gateways under one kernel: what a RNIC
// does by DMA, it does by writing into memory both sides have mapped.
//
// It exists because two containers or namespaces of one host need no network
// between them: a WRITE is a copy, or nothing at all where the payload was put
// in place through verbs.RemoteMapper. It does not protect two gateways from
// reading or spoiling each other's shared memory: the isolation unit is the
// peer, which reaches only the memory of its own pair.
//
// # Peers
//
// A Peer is another device that shares memory with this one. They meet at a
// Unix socket in a common directory (Listen, Attach); whoever calls, there is
// one peer per pair of gateways, and its PD is where memory regions and queue
// pairs are made. The socket stays open: when it hangs up, the peer is down, its
// queue pairs are in ERR within milliseconds and everything posted is flushed.
//
// # Memory
//
// Each side of a peer owns one sealed memfd, mapped by both:
//
//	header            epoch of the owner, acknowledgements of the other side
//	vector areas      armed flag, summary, ready bitmap: who rings and why
//	queue pair table  where the block of a queue pair is
//	memory region table
//	arena             queue pair blocks (entry ring), AllocMR memory
//
// Whatever the other side can write is read once, range-checked, and never
// trusted twice. A value that cannot be right ends that peer and nothing else.
//
// Memory of a closed queue pair or region is used again only after every
// driven vector of the peer has passed a Progress since: by then the peer has
// seen the invalid key or the dead queue pair and holds no span of it (grace.go).
//
// # Doorbells
//
// One eventfd per peer, vector and direction. A publisher sets the ready bit of
// the queue pair; the bell rings once per Flush, only if the peer's loop has
// armed itself, and at once when more than 64 KiB were published.
//
// The trap: an eventfd's O_NONBLOCK flag is shared with the peer. The device
// sets it and checks that it was given an eventfd, but an authorised peer that
// clears the flag and fills the counter on purpose can stall our loop; the
// rendezvous admits only our own user and root.
package shm
