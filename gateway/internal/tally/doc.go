// Package tally keeps what parts of a gateway have counted that have ended while the daemon
// goes on: its engine, that of datagrams, and devices. Counters of the documents only grow.
package tally
