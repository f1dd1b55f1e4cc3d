// Package fdpass sends packets with open files between processes of this program:
// over a SOCK_SEQPACKET socket, which keeps a packet and its files (SCM_RIGHTS)
// together. It knows neither what a packet says nor which process may send it.
// The trap: files that have arrived stay open until the receiver closes them.
package fdpass
