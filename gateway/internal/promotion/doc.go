// Package promotion is the broker of the in-process way in a gateway: it serves the programs that have the library, by the
// rules, switches and limits of the gateway. Which ends fit, and their memory, are the business of package broker.
//
// The trap: a gateway that ends, drains or is taken over from must not have the socket any more, or new programs ask one
// that answers no. Connections that are promoted need none: they go on without a broker.
package promotion
