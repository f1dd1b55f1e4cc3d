// Package promotion is the broker of the in-process way in a gateway: it serves the programs that have the library, by
// the rules, switches and limits of the gateway. Package broker matches ends and makes their memory.
//
// The trap: a gateway that ends, drains or yields to another must give the socket up, or new programs ask one that
// answers no. Promoted connections go on without a broker.
package promotion
