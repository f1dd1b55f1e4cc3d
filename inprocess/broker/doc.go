// Package broker brings together the two ends of a TCP connection whose processes have loaded libsmcgw.so, and gives
// each end its memory. No byte of a connection passes through it, and promoted connections continue unaffected when it
// ends.
//
// A core without I/O or a clock (core.go) makes the decisions; Broker is the shell around it. Everything that a client
// says is checked; an impossible message ends that client alone. All methods of Broker are safe for concurrent use.
//
// The trap: the broker must close a socket that comes with a question before it does anything else. A duplicate held
// longer delays the application's FIN.
package broker
