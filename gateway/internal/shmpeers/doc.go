// Package shmpeers keeps the gateways under this kernel that share memory with this one, and
// how many flows and datagram ports use each of them.
//
// A client meets its peers by an offer: memory and key exist before the server is known, so
// that the first PROPOSAL can already name its queue pair. The offer is kept per server
// address and serves every later flow to it. A server attaches to the offer that names it.
//
//	PeerFor ──► offered ── a server attaches ──┐
//	Attach  ──────────────────────────────────►┴► in use, idle ── Close, hang-up ──► down
//
// It exists because connections and datagrams use the same peers: neither is asked which of
// them make room. It knows no queue pair.
//
// The one trap: the memory of a peer that is down is not free before the last flow has
// released its part. What releases a part calls Reap.
package shmpeers
