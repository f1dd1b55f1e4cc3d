// Package between runs programs with the library whose connections are between hosts. It plays the broker and both
// gateways, and copies ring bytes and words from one side to the other late, in pieces, and not always.
package between
