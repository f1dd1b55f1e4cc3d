// Package promotion runs the broker of the in-process way in a gateway: it serves programs that have the library, by
// the gateway's rules, switches and limits. Package broker matches ends and makes their memory.
//
// The trap: a gateway that ends, drains or yields to another must give up the socket, or new programs ask a broker that
// denies them. Promoted connections go on without a broker.
package promotion
