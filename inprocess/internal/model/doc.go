// Package model explores the protocol of promoted connections: its tests visit every state that one producer and one
// consumer, with the memory they share and the kernel's stream between them, can reach within small bounds.
//
// The rules are those of docs/protocol/in-process.md. A step is one access to a shared word, with its memory order, or
// one system call, in the order of the C code: the names of the steps (producer_test.go, consumer_test.go) can be read
// beside it. The kernel's stream has a send buffer, a receive buffer and bytes in flight, tokens among them.
//
// Memory is modeled by views: each word keeps the history of its stores, each thread the oldest store of each word that
// it may still load, and acquire, release and fences join views. Bytes of the ring are not atomic: a store or load that
// does not happen after the other side's is an error. A stopped thread is one whose next step does not come; a killed
// one leaves a FIN, or an RST that may overtake what it sent.
//
// What must hold: data arrive in order, each byte once; no token is taken for data and no byte of data for a token; if
// no thread can go on, everything has been delivered; the kernel never refuses a token. Each mutation leaves out one
// rule and must be found, which proves that the explorer can fail.
//
// SMCGW_MODEL=all explores larger bounds.
package model
