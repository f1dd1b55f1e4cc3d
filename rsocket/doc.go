// Package rsocket is the rsocket protocol, version 1, as rdma-core's librdmacm speaks it: a byte stream over one RC
// queue pair, written by RDMA straight into the peer's receive ring.
//
// It lets the gateway's connections and plain Go programs talk to each other and to stock rsockets. [Stream] is the
// protocol itself: it does no I/O, reads no clock, takes no locks and does not allocate per operation; its user reports
// completions and asks what to post. [Endpoint] binds one stream to a queue pair and to memory from package rmb, for an
// event loop that owns both. Neither sets up queue pairs, times anything out or waits. The headers of datagrams are
// here too ([DatagramHeader], [ResolveHeader]). Package rsocket/socket builds sockets for programs on top. The package
// does no name resolution, encryption or authentication.
//
// The trap: SHUTDOWN looks like the end of the peer's data, but between gateways it is only a hint. There, a direction
// ends with the END record of the wire leg, which has the final offset; this package provides offsets for it. With
// other peers SHUTDOWN is the end, and the only one: losing the queue pair without it is ECONNRESET. So an error is not
// final until the completion queue has been drained: data that arrived before it still counts.
//
// # Where each side writes
//
//	       side A                                         side B
//	send buffer ──── WRITE_IMM DATA(n) ───────────────► receive ring     one grant after the other
//	                                                       │ consumed
//	target list ◄─── WRITE_IMM SGL(credits), 16 bytes ─────┘ granted again
//	 [0] [1] …                                          target list      the same the other way
//	mapping slots ◄─ WRITE_IMM IOMAP_SGL(slot), 24 bytes ─ AddIOMap
//	 [0] [1] …
//	    │ RemoteMap
//	any bytes ────── WRITE, no immediate ──────────────► mapped memory   direct placement
//
// # Messages
//
// Every message is an RDMA WRITE WITH IMMEDIATE: docs/protocol/rsocket.md "Streams: messages" has the operations, and
// "Streams: connecting" the 40 bytes of connection data (rs_conn_data). Over iWARP, stream rsockets instead send the
// immediate in a SEND after each write. That mode is refused with [ErrMessageMode], either by device ([CheckDevice]) or
// at the first SEND that arrives.
//
// # Grants and credits
//
// The receiver grants pieces of its ring through the sender's target list, and credits by a limit that is absolute
// modulo 65536, as docs/protocol/rsocket.md "Streams: messages" says. The choices are ours: the limit is raised when
// half of the credits have been consumed, with a grant, or by [Stream.ReturnCredits]. Grants are at least an eighth of
// the ring (half when the peer's list has two entries, as a stock one has), so that bulk data moves in large pieces and
// small messages cost one credit message per half queue; a peer that has filled all its grants gets a smaller one
// sooner.
//
// Between gateways ([Gateway]) the first grant is the whole ring, so both sides know it: later grants must continue it
// in order, and grants and credits tell how much the peer has consumed. Only that frees sent bytes: a send completion
// means that the bytes were placed, not consumed, and a connection that changes its carrier resends from the consumed
// offset.
//
// # Direct placement
//
// The peer fills the slots for mappings that a side may have after its target list with its own memory that may be
// written to, at offsets of its choice, and gets no completion for what is written there. A mapping is announced before
// the data that follows it, and bytes sent after a direct write arrive after it. A stock peer never returns the credit
// of a mapping, so only half of the credits may be spent this way ([ErrIOMapCredits]). Removing a mapping is not
// announced: its slot is reused, and if the peer still writes there after its key is gone, the connection ends.
// Gateways announce no slots and refuse mappings.
//
// # Sending
//
// A message is as large as the grant, the send buffer and the pending data allow. A stock rsocket instead starts each
// call with 2048 bytes and doubles, which makes it slow at 64 KiB and more. Small messages are coalesced while two
// small ones are in flight ([Endpoint.Pump]).
//
// A gateway's client may send a probe before anything else, which the server sends back ([Endpoint.Probe]). Stock
// rsockets reserve the operation (RS_OP_RSVD_DATA_MORE) and are never sent one. A probe moves no offset and takes no
// credit.
//
// # States
//
//	          Connect                Shutdown: SHUTDOWN ►
//	idle ─────────────► open ──────────────────────────────► local_shut
//	                     │                                       │
//	          ◄ SHUTDOWN │                                       │ ◄ SHUTDOWN (crossed) or
//	                     ▼                                       │ ◄ DISCONNECT
//	                remote_shut                                  │
//	                     │ Shutdown: DISCONNECT ►                │
//	                     │ completes                             ▼
//	                     └───────────────────────────────► disconnected
//
//	open, local_shut, remote_shut ── Disconnect: DISCONNECT ► completes, or ◄ DISCONNECT ──► disconnected
//	any ── violation by the peer, failed completion ──► failed (what had arrived before a failed completion counts)
//
// A disconnected stream's received bytes stay readable. The queue pair may be closed when [Stream.Settled] says so.
package rsocket
