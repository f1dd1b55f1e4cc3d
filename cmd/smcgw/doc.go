// Command smcgw runs and operates the gateway.
//
// It turns command lines into calls of package gateway: one file per verb, without logic of its own. Nouns (status,
// conns, peers, codes, version) never change anything; verbs (up, off, on, demote, check, cleanup, peers flush) may.
// Data goes to standard output, everything else to standard error, and the exit status is one of a documented set (see
// exit.go).
//
// The trap: up starts itself again, see guardian.Supervise. Nothing may be opened before that call.
package main
