// Package cookie reads what a client repeats of a SYN-ACK that the steering program has sent in
// the name of the stack, before the stack hears of it, and without state (docs/PROTOCOL.md
// "Cookies"). The segment that answers it proves the client's address, and repeats what the SYN
// asked for.
package cookie
