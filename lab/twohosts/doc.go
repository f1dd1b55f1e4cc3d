// Package twohosts is the two hosts of tests that run two gateways, or parts of them, under one
// kernel: their addresses, a UDP port, the directory in which they meet over shared memory, and
// of a steering without programs the part that connections need: entries of flows in a map, and
// what is remembered of peers. It knows no packet.
//
// The trap: a port that is free when it is returned may be taken by another program before the
// test has it. Of entries nothing expires, and a TTL is only kept.
package twohosts
