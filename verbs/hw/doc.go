// Package hw drives RDMA adapters: it presents a port of a libibverbs device through the interfaces of package verbs.
//
// The library and its providers promise less than package verbs does. The difference is implemented here, in Go, and
// tested with a fake library: to which queue pair a completion belongs, when a queue entry is free, which completions
// were fetched before the caller asked for them, and on which queues the loop may sleep. Package ibv makes the calls.
//
// Posting only writes records. Flush passes those of a whole turn to the library in one call, so an error of the
// provider comes too late for PostSend: the work request completes with LOC_QP_OP_ERR and the queue pair goes to ERR.
//
// The trap: an open device keeps its kernel driver from being unloaded. Drivers that can force removal raise
// DEVICE_FATAL, and everything must be closed then; others (rxe) wait until the last object is closed.
package hw
