// Package legs keeps the network namespace of the legs, the gateway's sockets that face local applications.
//
// In a namespace of their own the legs are not subject to the host's rules, routes and ports, and are invisible to the
// host's programs. What they send reaches the host as if it came from the wire (docs/ARCHITECTURE.md "Legs").
//
// Entering a namespace takes a privilege that a process which reads what peers send must not have. So a small process,
// the keeper, is born in the namespace. It sets the namespace up and makes sockets there, which it passes to the
// gateway as descriptors:
//
//	gateway ── one request ──► keeper         hello, device, sockets, spare
//	        ◄─ answer, descriptors ─
//
// A second process, the spare, waits in the namespace to replace a keeper that dies; no process outside could. Both end
// when the gateway's end of their connection is closed. The namespace ends with the keeper and its last socket and
// descriptor, and its devices end with it. So nothing remains of a gateway that is killed.
package legs
