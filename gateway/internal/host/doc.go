// Package host abstracts the machine below a gateway: the steering of segments, the sockets that face local
// applications, and the loop that they report to, so that tests can stand for each. Unsteered is a host without
// steering. The package holds no state. The trap: what is called on a loop must not block.
package host
