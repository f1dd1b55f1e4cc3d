// Package tally keeps what parts of a gateway have counted that have ended while the daemon
// goes on: engines of datagrams, devices, and whole gateways in whose place another one
// serves. Counters of the documents only grow.
package tally
