// Package sockdiag looks at TCP sockets of a network namespace, and ends them, by the
// kernel's sock_diag.
//
// It exists because the legs of a flow and the application's socket have states that their
// owners do not tell: closed with something left to deliver, in TIME_WAIT, connected. It
// knows nothing of flows.
//
// The trap: the kernel's lookup falls back to listeners, so it may find another socket than
// the connection that was asked for. [Client.Destroy] leaves the choice to the caller.
package sockdiag
