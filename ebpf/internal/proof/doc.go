// Package proof makes a connection of our own to show whether legs reach applications
// on a device: it takes the way of a carried client's, from a socket of the host through
// routing, netfilter and the device's program to a socket in the namespace of the legs
// and back.
//
// It exists because nothing tells whether a host drops what comes from a leg: rules are
// of many kinds, and only a packet finds all of them. It decides nothing about
// connections: its caller does, by what [Prover.Prove] returns.
//
// The trap: a proof needs an entry of its own in the table of the programs, which its
// caller makes as [Entries], and which the programs answer with the steps it has taken.
package proof
