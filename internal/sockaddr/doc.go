// Package sockaddr converts addresses from and to those of system calls, and reads the addresses of sockets.
//
// It drops the zones of IPv6 addresses.
package sockaddr
