// Package mirror is the gateway's part of promoted connections between hosts: an [End] for each program's end
// (docs/protocol/between-hosts.md). The program writes into its own memory and reads a mirror of the peer's memory,
// which the End writes. Between the two gateways an rsocket stream moves the bytes from one program's ring into the
// other's: the rings are its send buffer and receive ring. No byte is copied, and the data path neither locks nor
// allocates.
//
//	own memory ─ head ─► WRITE from its ring ════════► into the ring of the mirror ─ head ─► doorbell
//	mirror     ◄─ tail ─ freed ◄═══════════ grants ◄═════════ consumed ◄─ tail ─ own memory
//
// Where a device cannot let peers write into such memory (shm), the End copies what arrives into the mirror, at the
// same offsets.
//
// An End belongs to a shard. While it is active it is hot: its [Hub], a driver of the shard, examines its words in
// every turn. Before the shard sleeps it asks the libraries of all hot ends to ring their bells; an end idle for a
// while is no longer examined, only its bell is watched. An End knows neither the broker nor the control connection:
// its [Owner] passes on what the peer gateway says, and is told what the library does.
//
// The trap: the library is hostile, and so is the peer. Every word is read once and checked, no word of the library's
// memory is trusted beyond the turn, and an impossible word ends the carrier of that connection only. Memory that a
// device or another loop may still reach outlives the End.
package mirror
