// Package bench compares plain TCP with every carrier between two gateways that
// run on real hosts: throughput each way, latency, connections per second, and
// what they cost.
//
// It exists because a user's network is not ours: whether carrying pays there
// is for a measurement there to say. One host serves, the other measures; both
// are ordinary programs with ordinary sockets, and the gateways are those that
// run there anyway. Which connection is carried by what is said by a trial, a
// rule for the one port of the measurement that vanishes with it
// ([config.Trial]); whether it really was is read from the gateway afterwards,
// connection by connection. A value that was not carried as claimed is not a
// value, and its row says which reason there was instead.
//
//	measuring host                             serving host
//	 Run ── admin socket: trial, conns          Serve ── admin socket: trial
//	  ├── control connection, always native ──────┤     token, meters
//	  └── data connections: native or carried ────┘     upload, download, echo, request
//
// It makes no hosts and no networks: those of the user are measured.
//
// The trap: processor time is that of the two programs and the two daemons.
// What the kernel does in interrupts on behalf of a connection belongs to none
// of them.
package bench
