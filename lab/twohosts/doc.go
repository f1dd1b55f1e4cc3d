// Package twohosts provides the two hosts of tests that run two gateways, or parts of them, under one kernel: their
// addresses, a UDP port, the directory in which they meet over shared memory, and the part of the steering that
// connections need, without programs: a map with entries of flows, and what is remembered about peers. It knows no
// packets.
//
// A port that is free when it is returned may be taken by another program before the test uses it. Entries do not
// expire, and a TTL is only stored.
package twohosts
