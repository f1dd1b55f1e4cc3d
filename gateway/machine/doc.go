// Package machine finds the gateways of a machine, whatever their configurations and modes,
// by the devices that their processes hold and by the admin sockets that answer. It passes on
// orders of its caller and changes nothing else. The trap: a caller without privileges sees
// only its own processes, so gateways that are not in the list may be running.
package machine
