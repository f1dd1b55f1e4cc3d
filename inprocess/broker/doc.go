// Package broker brings the two ends of a TCP connection together, whose processes have libsmcgw.so, and gives each
// its memory. No byte of a connection passes it, and nothing happens to promoted connections when it ends.
//
// A core without I/O and clock (core.go) decides; Broker is the shell. What a client says is checked, and what
// cannot be ends that client alone. Broker's methods may be called at any time by any goroutine.
//
// The trap: a socket that came with a question is closed before anything else happens. Held longer it would
// withhold the FIN of its application.
package broker
