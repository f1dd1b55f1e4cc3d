// Package peers is what a gateway knows of its peers, in one table by address and within
// one bound: what a peer holds of what others want, how often it has refused in a row,
// which carriers work with it, and which are left alone after they failed ([Table]).
//
// From that follows which connections may begin: [Refusals] is why none does, [Room] tells
// the programs whether peers may begin any, and [Limits] bounds how many there are at once,
// how many begin in a second, and what one peer may have of both.
//
// The traps: what decides about new connections lies in the maps of the programs, and the
// caller keeps both in step. Note and Change tell the programs, so the caller holds no lock.
package peers
