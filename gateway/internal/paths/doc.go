// Package paths gives the datagram engine the devices of connections.
//
// It exists so that neither the engine nor the carriers know the other.
package paths
