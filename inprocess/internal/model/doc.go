// Package model explores the protocol of promoted connections: its tests visit every state that one producer and one
// consumer, with the memory they share and the kernel's stream between them, can reach within small bounds.
//
// The rules are those of docs/protocol/in-process.md. A step is one access to a shared word, with its memory order, or
// one system call, in the order of the C code: the names of the steps (producer_test.go, consumer_test.go) can be read
// beside it. The kernel's stream has a send buffer, a receive buffer and bytes on their way, tokens among them.
//
// Memory is a machine of views: a word has the history of its stores, a thread has the oldest store of each word that
// it may still load, and acquire, release and fences join views. Bytes of the ring are not atomic: a store or load
// that does not happen after the other side's is an error. A thread that is stopped is a thread whose next step does
// not come; one that is killed leaves FIN, or RST that may overtake what it sent.
//
// What must hold: data come in order, each byte once; no token is data and no byte of data is a token; where no
// thread can go on, all is delivered; the kernel never refuses a token. Each mutation leaves one rule out, and is
// found, which shows that the explorer can fail.
//
// SMCGW_MODEL=all explores larger bounds.
package model
