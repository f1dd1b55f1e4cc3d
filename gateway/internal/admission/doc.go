// Package admission decides which connections may begin: [Refusals] is why none does, [Room]
// tells the programs whether peers may begin any, and [Limits] bounds how many there are at
// once, how many begin in a second, and what one peer may have of both. The programs
// below and the gateway's table of connections are its caller's. The trap: Note and
// Change tell the programs, so the caller holds no lock.
package admission
