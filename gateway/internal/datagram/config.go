package datagram

import (
	"context"
	"log/slog"
	"net/netip"
	"time"

	"github.com/smcgw/smcgw/ebpf"
	"github.com/smcgw/smcgw/gateway/internal/loop"
	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/negotiate"
	"github.com/smcgw/smcgw/verbs"
	"github.com/smcgw/smcgw/verbs/shm"
)

// Config is what an engine is made from. All of it but Only and Keys is needed.
type Config struct {
	// GatewayID names the gateway, HostID its kernel: gateways under the same kernel
	// can share memory.
	GatewayID, HostID [16]byte
	// Port is the UDP port at which gateways ask each other; a peer whose port is not
	// known yet is asked at the same one.
	Port uint16
	// Only is the only address that is asked at the port; zero: all of the host.
	Only netip.Addr
	// OwnPorts are the UDP ports of this gateway. A datagram to them is not delivered.
	OwnPorts []uint16
	// Keys authenticate the resolution of peers; none: nothing is authenticated.
	Keys negotiate.Keys
	// Policy says how long a peer stays native for a reason.
	Policy negotiate.CachePolicy
	// Shard runs the engine.
	Shard *loop.Shard
	// TUN is the descriptor of A: steered datagrams are read from it and others are
	// written to it, non-blocking, with a virtio_net_hdr of 10 bytes. The host closes it
	// after the engine.
	TUN int
	// Steering is the datapath below.
	Steering Steering
	// Providers are the devices that carry, in the order of preference.
	Providers []Provider
	// Gateway is the gateway that the engine is a part of.
	Gateway Gateway
	// Log takes what an operator may want to know.
	Log *slog.Logger
}

// Steering is the part of the datapath that datagrams need. It is *ebpf.Datapath on
// a real host; its rules are those of package ebpf. The shard calls it: its methods are of
// [ebpf.Prompt].
type Steering interface {
	SetDatagramPeer(p ebpf.DatagramPeer) error
	ForgetDatagramPeer(addr netip.Addr, port uint16) error
	OpenDatagram(t ebpf.Tuple, ifindex, rule int) error
	CloseDatagram(t ebpf.Tuple, reason uint8, ttl time.Duration) error
	DatagramIfindex(t ebpf.Tuple) (int, error)
	RouteDevice(local, remote netip.Addr) (ifindex int, err error)
	Decide(q ebpf.Query) ebpf.Verdict
}

// Gateway is what the engine asks of the gateway it is a part of, and tells it. The
// shard calls it: no method waits.
type Gateway interface {
	// NextID returns the number of a new flow, which no connection has.
	NextID() uint64
	// MaxFlows bounds the flows.
	MaxFlows() int
	// Off reports whether an operator has switched the gateway off.
	Off() bool
	// NamesPeer reports whether the policy names this address itself.
	NamesPeer(a netip.Addr) bool
	// Proven says that datagrams to a peer are carried, and by what.
	Proven(a netip.Addr, by report.Carrier)
	// NoCommonKey says that a peer has other keys.
	NoCommonKey(a netip.Addr)
	// Ended takes the record of a flow that is over.
	Ended(c report.ConnInfo)
}

// Provider has the devices of one kind: a network or a memory. The methods of both may
// wait: the keeper's goroutine calls them.
type Provider interface {
	// Kind is the carrier that peers are told of.
	Kind() negotiate.CarrierKind
}

// network is a device whose peers are addresses, such as RoCEv2.
type network interface {
	Provider
	// DeviceAt returns the device that has a local address, and reaches a remote one
	// from it.
	DeviceAt(local, remote netip.Addr) (device, error)
}

// device is a verbs device as queue pairs for datagrams are made on it.
type device struct {
	verbs.Device
	// Queue takes the completions on the shard of the engine, where memory is shared.
	Queue *loop.Queue
	// Hold returns the queue for one more queue pair on a network. The device stays open, and the
	// queue has room, until leave is called: after the close of the queue pair and its domain.
	Hold func() (q *loop.Queue, leave func(), err error)
	// Port is the port of the device.
	Port verbs.PortAttr
	// GID is the place of the local address among the GIDs of Port; 0 where memory is
	// shared.
	GID uint8
	// TrafficClass and ServiceLevel are the marks of packets.
	TrafficClass, ServiceLevel uint8
	// Mixed allows devices of the other RoCEv2 kind at the other end, where this one
	// receives where adapters send to.
	Mixed bool
}

// memory is the device of peers that share memory with this host.
type memory interface {
	Provider
	// SharedDevice returns the device that all peers share memory with.
	SharedDevice() device
	// Offered returns the peer that memory is offered to at an address, and makes the
	// offer if there is none. A zero peer: the host of the address cannot take it.
	Offered(to netip.Addr) (memoryPeer, error)
	// Known returns the live peer of a key; zero if none.
	Known(key [16]byte) memoryPeer
	// Attach becomes the peer of an offer that came from an address. Goroutines of their
	// own call it, one per gateway.
	Attach(ctx context.Context, from netip.Addr, name string, key [16]byte) (memoryPeer, error)
}

// memoryPeer is a peer that shares memory with this host.
type memoryPeer struct {
	*shm.Peer
	// Hold keeps the device from letting an idle peer go until leave is called.
	Hold func() (leave func())
}
