// Package testnet builds small networks of Linux network namespaces for tests and demonstrations: hosts with real IPv4
// and IPv6 addresses, a switch between them, and in the switch the middleboxes that real networks have.
//
// The interesting failures of smcgw happen in the network and at the boundary to the kernel: a firewall that drops SYNs
// with unknown options, a box that strips or mirrors them, loss, duplication, reordering, a host that dies. The package
// creates them on demand with ordinary kernel networking, and runs unmodified programs on the hosts.
//
//	    h1              h2              h3
//	10.77.0.1       10.77.0.2       10.77.0.3
//	  fd77::1         fd77::2         fd77::3
//	   [eth0]          [eth0]          [eth0]
//	     │ veth          │ veth          │ veth
//	   [p-h1]          [p-h2]          [p-h3]    tcx ingress: the middlebox
//	     └───────────[ bridge br0 ]──────┘       10.77.0.254, fd77::fe: router
//	                      │
//	                  [hop0, TAP]                user space: delay, reordering,
//	                   switch namespace          mirrored options
//
// It does not simulate hosts in memory (see package wire for that), and knows nothing about the gateway.
//
// A namespace belongs to a thread. Work in a host's namespace only inside [Host.Do], and do not start goroutines there
// that need it.
package testnet
