// Package sockdiag looks up TCP sockets of a network namespace, and destroys them, with the kernel's sock_diag.
//
// The legs of a flow and the application's socket have states that their owners do not report: closed with something
// left to deliver, in TIME_WAIT, connected. The package knows nothing about flows.
//
// The kernel's lookup falls back to listeners, so it may find another socket than the connection that was asked for.
// [Client.Destroy] lets the caller decide.
package sockdiag
