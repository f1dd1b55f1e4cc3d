// Package legs keeps the network namespace of the gateway's sockets that face
// local applications, the legs.
//
// In a namespace of their own the legs see none of the host's rules, routes and
// ports, and none of the host's programs sees them: what they send reaches the
// host as if it came from the wire (docs/ARCHITECTURE.md "Legs").
//
// Entering a namespace takes a privilege that a process which reads what peers
// send must not have. So a small process, the keeper, is born in the namespace,
// sets it up and makes sockets there; the gateway gets them as descriptors:
//
//	gateway ── one request ──► keeper         hello, device, sockets, spare
//	        ◄─ answer, descriptors ─
//
// A second one, the spare, waits there to take the place of a keeper that dies: no
// other process could. Both end with the gateway's end of their connections. The
// namespace ends with the keeper and the last socket and descriptor of it, and its
// devices end with it, so nothing is left of a gateway that is killed.
package legs
