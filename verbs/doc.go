// Package verbs is the RDMA programming model of libibverbs as small Go
// interfaces: devices, protection domains, memory regions, completion queues
// and queue pairs, with their standard names, states and completion statuses.
//
// rsocket and the gateway are written once on top of it and run on shared memory (verbs/shm), on RoCEv2 over UDP
// (verbs/soft) and on RDMA adapters (verbs/hw). The package contains no device, only what all devices share: the names,
// and the rules of the queue-pair state machine (CheckTransition).
//
// # Ownership
//
// A device works only when it is driven, and takes no lock on the data path. It has vectors, numbered from 0; every CQ
// is created for one of them, and every QP belongs to the vector of its CQs. Exactly one goroutine at a time, the loop
// of that vector, calls the vector's Driver and every method of its CQs and QPs. One exception lets other goroutines
// set up queue pairs: until a QP is moved to RTR, it belongs to the goroutine that created it, which may move it to
// INIT, post receives, and then hand it to the loop. A Detacher can be taken from its loop if its Modify or Close would
// take too long there. Any goroutine may call Device, PD and MR methods.
//
// The trap: nothing progresses while the loop does not run. A WR that could not be executed immediately waits in the
// send queue until the driver's next Progress.
package verbs
