// Package datagram carries the datagrams of unmodified UDP programs: an [Engine] reads
// what the programs of package ebpf steer, sends it to the gateway of the peer on a UD
// queue pair, and writes what peers send as if it came from the network
// (docs/ARCHITECTURE.md "Datagrams between gateways", docs/PROTOCOL.md "Datagrams").
//
// It knows the gateway it is a part of by [Config] only, and the carriers of connections by
// their devices, which it uses with them ([Providers]). A datagram that cannot be
// carried goes back to the network as it came.
//
// The trap: the engine lives on one shard. What it calls there, the [Steering] and the
// [Gateway], must not wait, for the engine least of all.
package datagram
