// Package machine finds the gateways of a machine, whatever their configurations and modes:
// by the devices that their processes hold and by the admin sockets that answer there. It
// tells them what its caller wants of them, and changes nothing else. The trap: a caller
// without privileges sees only its own processes, so a gateway that is not in the list may
// still run.
package machine
