// Package carrier makes links: queue pairs to the gateway of a peer, proved and ready to
// carry the bytes of one connection. It knows devices, peers and memory, and nothing of
// what a connection is.
//
//	Provider  the devices of one kind: shared memory, RoCEv2 in user space, adapters
//	Link      one queue pair with its endpoint and rings
//	User      what a link works for, and what it tells
//
// A link begins by Offer at the client and by Answer at the server, where Meet comes
// first if the peer's gateway is not known yet. Connect joins it with the one of the
// peer, Prove shows that a full path MTU comes through, Begin says that it carries. It
// ends by Close, or by Depart where its connection goes on without it.
//
// The names of files begin with the device that they are about: shm, soft, hw, and ib for
// what only the InfiniBand network of adapters has. What soft and hw have in common, since
// their peers are elsewhere in a network, is far.
//
// The one trap: memory that a peer may still write to is not free when its link is
// closed. What closes a link leaves its endpoint to the device, which frees the memory
// when no packet and no loop of the peer finds it any more.
package carrier
