// Package mirror is the gateway's part of promoted connections between hosts: an [End] for each program's end
// (docs/protocol/between-hosts.md). The program has written into memory of its own, and reads a mirror of the peer's, which
// the End writes. Between the two gateways the bytes go from the one's ring into the other's by an rsocket stream, whose
// send buffer and receive ring these are: no byte is copied, and nothing on its way takes a lock or allocates.
//
//	own memory ─ head ─► WRITE from its ring ════════► into the ring of the mirror ─ head ─► doorbell
//	mirror     ◄─ tail ─ freed ◄═══════════ grants ◄═════════ consumed ◄─ tail ─ own memory
//
// Where a device cannot let peers write into such memory (shm), what arrives is copied into the mirror, byte for byte at the
// same places.
//
// An End belongs to a shard. While something happens it is hot: its [Hub], which is a driver of the shard, looks at its
// words in every turn. A shard that sleeps asks all hot ends for their bells, and an end at which nothing has happened for a
// while is left with its bell. It knows nothing of the broker and of the control connection: its [Owner] tells it what the
// peer gateway says, and is told what the library does.
//
// The trap: the library is hostile, and so is the peer. Every word is read once and checked, nothing of the own memory is
// believed for longer than a turn, and what they say that cannot be ends the carrier of their own connection. Memory that a
// device or a loop may still reach outlives the End.
package mirror
