// Package carrier makes links: queue pairs to a peer gateway, proved and ready to carry the
// bytes of one connection. It knows devices, peers and memory, but nothing about what a
// connection is.
//
//	Provider  the devices of one kind: shared memory, RoCEv2 in user space, adapters
//	Link      one queue pair with its endpoint and rings
//	User      what a link works for and reports to
//
// A link begins with Offer at the client and with Answer at the server; Meet comes first if the
// server does not know the peer gateway yet. Connect joins the link to the peer's, Prove shows
// that packets of a full path MTU get through, and Begin says that it carries. The link ends with
// Close, or with Depart if its connection continues without it.
//
// File names begin with the device they deal with: shm, soft, hw, and ib for what only the
// InfiniBand network of adapters has. Code shared by soft and hw, whose peers are reached over a
// network, is in far.
//
// The one trap: memory that a peer may still write to must not be freed when its link is closed.
// Closing a link hands its endpoint to the device, which frees the memory once no packet and no
// loop of the peer can reach it.
package carrier
