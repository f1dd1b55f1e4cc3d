// Package rsocket is the rsocket protocol, version 1, as rdma-core's librdmacm speaks it: a byte stream over one RC
// queue pair, written by RDMA straight into the peer's receive ring.
//
// It exists so that the gateway's connections and a plain Go program can talk to each other and to stock rsockets. The
// protocol itself is [Stream]: no I/O, no clock, no locks, no allocation per operation, told what completed and asked
// what to post. [Endpoint] binds one stream to a queue pair and to memory from package rmb, for an event loop that
// owns both; these two set up no queue pair, time nothing out and never wait. The headers of datagrams are here too
// ([DatagramHeader], [ResolveHeader]). Package rsocket/socket makes sockets for programs of these. The package knows no
// names, no encryption and no authentication.
//
// The trap: SHUTDOWN looks like the end of the peer's data and between gateways is only a hint. What ends a direction
// there is the END record of the wire leg with its final offset; offsets are what this package offers for it. With other
// peers it is the end, and the only one there is: a queue pair that is lost without one is ECONNRESET. So an error is
// never the last word while the completion queue has not been read to its end: what arrived before still counts.
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
// "Streams: connecting" the 40 bytes of connection data (rs_conn_data). The stream rsockets speak over iWARP puts the
// immediate into a SEND after each write. It is refused with [ErrMessageMode], by device ([CheckDevice]) or at the first
// SEND that arrives.
//
// # Grants and credits
//
// The receiver grants pieces of its ring by writing {address, key, length} into the entries of the sender's target
// list, one after the other, beginning with entry 1, since the first grant came with the connection data. Entries are in
// the byte order of the list's owner. The sender fills grants in order; a message never spans two.
//
//   - An entry is written again only when all bytes it granted last have been received.
//   - An entry is read only after an SGL completion with 16 bytes, and then once.
//   - A credit limit is absolute modulo 65536. It rises when half of the credits have been consumed, or with a grant.
//   - Grants are eighths of the ring or more (halves when the peer's list has two entries, as a stock one has), so that
//     bulk data comes in large pieces and small messages cost a credit message per half queue.
//   - Four entries of the send queue belong to control messages.
//
// Between gateways ([Gateway]) the first grant is the whole ring, so both sides know it: grants must continue it in
// order, and what was granted or credited tells what the peer has consumed. Sent bytes are freed by that alone, since
// their completion means placed, not seen, and a connection that changes its carrier resends from there.
//
// # Direct placement
//
// After its target list a side may have slots for mappings, 24 bytes each: {offset (8), address (8), key (4), length
// (4)}, in the byte order of the list's owner as grants are. The peer fills them with memory of its own to be written
// to, by offsets of its own making; an entry is read only after its IOMAP_SGL completion, and then once. The owner gets
// no completion for what is written there. It is in order with data: bytes sent after a direct write arrive after it.
//
//   - A mapping is announced in front of the data after it, and takes one credit for good where the peer is a stock
//     one: so only half of the credits can be spent that way ([ErrIOMapCredits]).
//   - Taking a mapping back is not announced. Its slot is used again; the end of its key ends the connection of a peer
//     that writes there nevertheless.
//   - Gateways announce no slots and refuse mappings.
//
// # Sending
//
// A message is as large as grant, send buffer and what is there to send allow: a stock rsocket begins each call with 2048
// bytes and doubles, which costs it its speed at 64 KiB and more. Small messages gather while two small ones are under
// way ([Endpoint.Pump]).
//
// A gateway's client may send a probe before anything else, which the server sends back ([Endpoint.Probe]). Stock
// rsockets reserve the operation (RS_OP_RSVD_DATA_MORE) and are never sent it. It moves no offset and takes no credit.
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
// Disconnected leaves received bytes readable. The queue pair may go when [Stream.Settled] says so.
package rsocket
