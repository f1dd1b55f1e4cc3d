// Package loopback is the two hosts of tests that run two gateways, or parts of them, under one
// kernel: their addresses, a UDP port, and the directory in which they meet over shared memory.
//
// The trap: a port that is free when it is returned may be taken by another program before the
// test has it.
package loopback
