// Package rmb is the memory of the data path: ring cursors, byte rings and the pool that send buffers and receive
// rings come from.
//
// RMB is SMC-R's word (RFC 7609 section 4.4.2) for memory a peer writes into with RDMA. One direction of a connection
// is one ring with one producer and one consumer. The cursors are SMC-R's pair of wrap count and byte count; beside
// them every ring keeps absolute 64-bit offsets, because a connection that changes its carrier continues at an
// absolute offset, never at a guess.
//
// A [Ring] is owned by one goroutine at a time and has no locks. A [Pool] is safe for concurrent use, is not meant for
// the hot path, and never exceeds its limit: memory that is not there is [ErrNoMemory], and the connection stays on
// native TCP.
//
// What the package does not do: it never decides when a peer has stopped writing. Its one trap follows from that:
// [Region.Free] makes the bytes available to another connection of the same peer at once, so the caller frees only
// after the queue pair's end is confirmed, and calls [Region.Quarantine] while it is not.
//
//	Pool ──1:n── Arena (one peer gateway, one PD) ──1:n── slab (one MR) ──1:n── Region (one ring or buffer)
//
// Memory that has an owner of its own is borrowed ([Arena.Borrow]): a region without a slab, given back by Free.
//
// In an isolated arena ([Pool.IsolatedArena]) the slab's registration is for this side only, and every region that the
// peer writes to has one of its own.
package rmb
