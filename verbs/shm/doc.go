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
// A Peer is another device that shares memory with this one. A device that
// listens makes an Offer, a pending peer with memory of its own, whose name and
// key travel to the other side by other means (CLC); that side calls Attach.
// Many flows share the peer. Its PD is where memory regions and queue pairs are
// made. Two gateways that offer to each other share two independent peers: a
// flow names its own by the key. The socket of the rendezvous stays open: when
// it hangs up, the peer is down, its queue pairs are in ERR and everything posted
// is flushed: within milliseconds when its process has ended (ErrDied), after a
// moment when that lives on (ErrHungUp, died.go).
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
// Whatever the other side can write is read once, range-checked, and never
// trusted twice. A value that cannot be right ends that peer and nothing else.
//
// Memory of a closed queue pair or region is used again only after every
// driven vector of the peer has passed a Progress since: by then the peer has
// seen the invalid key or the dead queue pair and holds no span of it (grace.go).
// A goroutine returns its pages to the system; until then it counts as used.
//
// # Operations
//
// The device has what gateways post to it, WRITE and WRITE_WITH_IMM on RC, SEND and
// SEND_WITH_IMM on UD, and refuses the rest: the Ops of its attributes say so.
//
// A WRITE is done by the requester, in the peer's memory, when it is issued, and
// is finished then: nothing is ever under way, and a fence has nothing to wait
// for. The responder announces its receives, and the requester spends them: a
// WRITE_WITH_IMM that finds one appends an entry to the ring of its partner.
//
// UD and its datagrams (datagram.go) reach any UD queue pair of the same peer:
// an address handle says nothing here. What cannot be delivered at once is
// dropped and counted. There is no general services interface: there are no
// addresses to manage.
//
// # Doorbells
//
// One eventfd per peer, vector and direction. A publisher sets the ready bit of
// the queue pair, for datagrams that of its own vector; the bell rings once per
// Flush, only if the peer's loop has armed itself, and at once when more than
// Config.PushBytes were published.
//
// The trap: an eventfd's O_NONBLOCK flag is shared with the peer. The device
// sets it and checks that it was given an eventfd; a peer that clears the flag
// and fills the counter on purpose stalls a ringing goroutine for a moment,
// until the warden notices and ends that peer (warden.go).
package shm
