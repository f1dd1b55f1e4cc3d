// Package rsocket is the rsocket protocol, version 1, as rdma-core's librdmacm speaks it: a byte stream over one RC
// queue pair, written by RDMA straight into the peer's receive ring.
//
// It exists so that the gateway's connections and a plain Go program can talk to each other and to stock rsockets. The
// protocol itself is [Stream]: no I/O, no clock, no locks, no allocation per operation, told what completed and asked
// what to post. [Endpoint] binds one stream to a queue pair and to memory from package rmb, for an event loop that
// owns both. What it does not do: it sets up no queue pair, times nothing out and never waits.
//
// The trap: SHUTDOWN looks like the end of the peer's data and between gateways is only a hint. What ends a direction
// there is the END record of the wire leg with its final offset; offsets are what this package offers for it.
//
// # Messages
//
// Every message is an RDMA WRITE WITH IMMEDIATE. The immediate is a 32-bit number, big-endian on the wire, operation in
// bits 31:29, data in bits 28:0 (librdmacm/docs/rsocket, rs_msg_set):
//
//	op  name        data                       bytes written                 takes
//	0   DATA        byte count                 stream bytes, into a grant    1 credit
//	1   PROBE       bit 28 echo, 27:0 length   pattern, into the first grant control slot (gateways only)
//	4   SGL         credit limit, bits 15:0    16: a grant; 0: credits only  control slot
//	6   IOMAP_SGL   slot                       24: a direct-placement entry  refused: no slots announced
//	7   CTRL 0      DISCONNECT                 0                             control slot
//	7   CTRL 2      SHUTDOWN                   0                             control slot
//	-   keepalive   (no immediate)             0                             control slot
//
// # Connection data
//
// Both sides tell each other 40 bytes, big-endian (rs_conn_data):
//
//	0  version = 1   1  flags: 1 sender is big-endian, 2 knows direct placement   2  credits (2)
//	4  reserved (3)  7  direct-placement slots, scaled
//	8  target list: address (8), key (4), number of entries (4)
//	24 first grant: address (8), key (4), length (4)
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
//	any ── violation by the peer, failed completion ──► failed
//
// Disconnected leaves received bytes readable. The queue pair may go when [Stream.Settled] says so.
package rsocket
