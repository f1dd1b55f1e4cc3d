// Package rmb is the memory of the data path: ring cursors, byte rings, and the pool from which send buffers and
// receive rings come.
//
// RMB is SMC-R's term (RFC 7609 section 4.4.2) for memory into which a peer writes with RDMA. One direction of a
// connection is one ring with one producer and one consumer. The cursors are SMC-R's pairs of wrap count and byte
// count. In addition every ring keeps absolute 64-bit offsets, because a connection that changes its carrier must
// continue at an exact offset.
//
// A [Ring] is owned by one goroutine at a time and has no locks. A [Pool] is safe for concurrent use, is not meant for
// the hot path, and never exceeds its limit: if there is no memory it returns [ErrNoMemory], and the connection stays
// native.
//
// The package cannot know when a peer has stopped writing. [Region.Free] immediately makes the memory available to
// other connections of the same peer, so call it only after the end of the queue pair is confirmed, and call
// [Region.Quarantine] until then.
//
//	Pool ──1:n── Arena (one peer gateway, one PD) ──1:n── slab (one MR) ──1:n── Region (one ring or buffer)
//
// Memory with an owner of its own can be borrowed ([Arena.Borrow]): a region without a slab, which Free gives back.
//
// In an isolated arena ([Pool.IsolatedArena]) the slab's registration is for this side only, and every region that the
// peer writes to has a registration of its own.
package rmb
