// Package admin is how operators, tools and scrapers see a gateway and switch it:
// the JSON documents, the server and the client of the unix socket. A gateway
// implements [Control]. The server authorises every request by the peer's credentials
// and runs on ordinary goroutines, never on those of the data path. It does not walk
// connections itself. What clients have at once is bounded, and some of it kept for those
// that may change something. The trap: documents are read by programs of others, so a field
// keeps its name and meaning for good.
package admin
