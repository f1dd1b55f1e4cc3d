// Package memory tests whole gateways on hosts in memory: the code that runs in
// production, between a TCP stack that plays the applications' kernel and a
// model of the steering.
//
// It exists so that an end-to-end test needs no privilege. What only kernels
// and programs can show is tested in the package above it.
//
// The trap: the hosts share this process. A test must find its own connections
// by their addresses, never by counting.
package memory
