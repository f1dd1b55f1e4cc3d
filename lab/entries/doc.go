// Package entries is the part of a steering without a kernel that tests of connections need:
// entries of flows in a map, and what is remembered of peers.
//
// It knows no packet. The trap: nothing expires, and a TTL is only kept.
package entries
