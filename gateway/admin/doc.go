// Package admin is the interface through which operators, tools and scrapers see and control
// a gateway: the JSON documents, and the server and client of the unix socket. A gateway
// implements [Control]. The server authorises every request by the peer's credentials. It
// runs on ordinary goroutines, never on those of the data path, and does not walk connections
// itself. What clients may use at a time is bounded, and part of it is reserved for those
// that may change something. The trap: other people's programs read the documents, so a field
// must keep its name and meaning forever.
package admin
