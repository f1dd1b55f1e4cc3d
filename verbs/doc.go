// Package verbs is the RDMA programming model of libibverbs as small Go
// interfaces: devices, protection domains, memory regions, completion queues
// and queue pairs, with their standard names, states and completion statuses.
//
// It exists so that rsocket and the gateway are written once and run on shared
// memory (verbs/shm), on RoCEv2 over UDP (verbs/soft) and later on real RNICs.
// It contains no device; it holds what all devices share: the names, and the rules
// of the queue-pair state machine (CheckTransition).
//
// # Ownership
//
// A device does its work only when it is driven, and takes no lock on the data
// path. It has vectors, numbered from 0; every CQ is created for one of them
// and every QP belongs to the vector of its CQs. Exactly one goroutine at a
// time, the loop of that vector, calls the vector's Driver and every method of
// its CQs and QPs. The one exception makes set-up by other goroutines possible:
// until a QP is moved to RTR it belongs to the goroutine that created it, which
// may modify it to INIT, post receives, and then hand it to the loop. A Detacher
// can be taken from its loop, where its Modify or Close would take that too long. Device,
// PD and MR methods may be called by any goroutine.
//
// The trap: nothing progresses while the loop is away. A WR that could not be
// executed at once waits in the send queue until the driver's next Progress.
package verbs
