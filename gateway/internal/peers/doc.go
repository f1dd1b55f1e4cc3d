// Package peers holds what a gateway knows of its peers, in one bounded table by address: what a peer holds of shared
// resources, how often in a row it has refused, which carriers work with it, and which rest because they failed
// ([Table]).
//
// This decides which connections may begin: [Refusals] is why none may, [Room] tells the programs whether peers may
// begin any, and [Limits] bounds how many there are at once, how many begin per second, and what one peer may have of
// both.
//
// The traps: what decides about new connections is in the programs' maps, and callers must keep both in step. Note and
// Change call the programs, so their callers must hold no lock.
package peers
