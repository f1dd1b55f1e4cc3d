// Package peers is what a gateway knows of its peers, in one table by address and within
// one bound: what a peer holds of what others want, how often it has refused in a row,
// which carriers work with it, and which are left alone after they failed. It decides
// nothing about a connection. The trap: what decides about new connections lies in the
// maps of the programs, and the caller keeps both in step.
package peers
