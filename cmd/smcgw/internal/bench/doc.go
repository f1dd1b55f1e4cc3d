// Package bench compares plain TCP with every carrier between two gateways that
// run on real hosts: throughput each way, latency, connections per second, and
// what they cost.
//
// Whether carrying pays on a user's network must be measured there. One host serves, the other measures; both are
// ordinary programs with ordinary sockets, and the gateways are those that run there anyway. A trial, a temporary rule
// for the one port of the measurement ([config.Trial]), determines which connection is carried by what. Whether it
// really was is read from the gateway afterwards, connection by connection. A value that was not carried as claimed
// does not count, and its row has the reason instead.
//
//	measuring host                             serving host
//	 Run ── admin socket: trial, conns          Serve ── admin socket: trial
//	  ├── control connection, always native ──────┤     token, meters
//	  └── data connections: native or carried ────┘     upload, download, echo, request
//
// It creates no hosts or networks: it measures those of the user.
//
// The trap: CPU time is that of the two programs and the two daemons. It does not include what the kernel does in
// interrupts on behalf of a connection.
package bench
