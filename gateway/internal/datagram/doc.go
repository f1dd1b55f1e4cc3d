// Package datagram carries the datagrams of unmodified UDP programs. An [Engine] reads the
// datagrams that the programs of package ebpf steer, sends them to the peer gateway on a UD
// queue pair, and delivers what peers send as if it came from the network
// (docs/ARCHITECTURE.md "Datagrams between gateways", docs/PROTOCOL.md "Datagrams").
//
// It knows the gateway that it is part of only through [Config], and shares the devices of
// connection carriers through [Providers]. A datagram that cannot be carried goes back to the
// network unchanged.
//
// The trap: the engine lives on one shard. The methods of [Steering] and [Gateway] that it calls
// there must not block, least of all on the engine.
package datagram
