// Package fdpass sends packets with open files between processes of this program, over a SOCK_SEQPACKET socket, which
// keeps a packet and its files (SCM_RIGHTS) together. It knows neither what a packet means nor which process may send
// it. Files that have arrived remain open until the receiver closes them.
package fdpass
