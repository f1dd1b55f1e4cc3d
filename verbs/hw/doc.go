// Package hw is RDMA on adapters: a port of a device of libibverbs under the
// interfaces of package verbs.
//
// It exists because the library and its providers promise less than package
// verbs does. What lies between is here, in Go, and tested with a fake library:
// whose completion a number is, when an entry of a queue is free, which
// completions were fetched before the caller asked for them, which queue may be
// slept on. Package ibv makes the calls.
//
// Posting only writes records. Flush hands those of a whole turn to the library
// in one call, so an error of the provider comes too late for PostSend: the work
// request completes with LOC_QP_OP_ERR and the queue pair goes to ERR.
//
// The trap: an open device keeps its kernel driver from being unloaded. Drivers
// that can tear it away raise DEVICE_FATAL and everything must be closed then;
// others (rxe) wait until the last object is closed.
package hw
