// Package between runs programs with the library whose connections are between hosts: it plays the broker and both
// gateways, and moves ring bytes and words from one side to the other by copying, late, in pieces, and not always.
package between
