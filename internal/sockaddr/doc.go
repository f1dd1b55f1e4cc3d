// Package sockaddr turns addresses into those of system calls and back, and reads those of sockets.
//
// The trap: zones of IPv6 addresses are left out.
package sockaddr
