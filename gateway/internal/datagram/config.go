package datagram

import (
	"context"
	"log/slog"
	"net/netip"
	"time"

	"github.com/smcgw/smcgw/ebpf"
	"github.com/smcgw/smcgw/gateway/internal/carrier"
	"github.com/smcgw/smcgw/gateway/internal/loop"
	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/negotiate"
)

// Config holds the parameters of an engine. All fields except Only and Keys are required.
type Config struct {
	// GatewayID identifies the gateway, HostID its kernel: gateways under the same kernel can
	// share memory.
	GatewayID, HostID [16]byte
	// Port is the UDP port on which gateways query each other. A peer whose port is not known
	// yet is queried on the same port.
	Port uint16
	// Only restricts the port to this address; zero: all addresses of the host.
	Only netip.Addr
	// OwnPorts are the UDP ports of this gateway. Datagrams to them are not delivered.
	OwnPorts []uint16
	// Keys authenticate the resolution of peers. With none, nothing is authenticated.
	Keys negotiate.Keys
	// Policy says for how long a reason keeps a peer native.
	Policy negotiate.CachePolicy
	// Shard runs the engine.
	Shard *loop.Shard
	// TUN is the non-blocking descriptor of the app TUN, with a virtio_net_hdr of 10 bytes.
	// The engine reads steered datagrams from it and writes the others to it. The host closes
	// it after the engine.
	TUN int
	// Steering is the datapath below.
	Steering Steering
	// Providers are the carrying devices, in order of preference.
	Providers []Provider
	// Gateway is the gateway that the engine is part of.
	Gateway Gateway
	// Log receives what operators may want to know.
	Log *slog.Logger
}

// Steering is the part of the datapath that datagrams need: *ebpf.Datapath on a real host,
// whose rules are those of package ebpf. The shard calls it, so its methods must be among
// those of [ebpf.Prompt].
type Steering interface {
	SetDatagramPeer(p ebpf.DatagramPeer) error
	ForgetDatagramPeer(addr netip.Addr, port uint16) error
	OpenDatagram(t ebpf.Tuple, ifindex, rule int) error
	CloseDatagram(t ebpf.Tuple, reason uint8, ttl time.Duration) error
	DatagramIfindex(t ebpf.Tuple) (int, error)
	RouteDevice(local, remote netip.Addr) (ifindex int, err error)
	Decide(q ebpf.Query) ebpf.Verdict
}

// Gateway is the interface to the gateway that the engine is part of. The shard calls it, so
// no method may block.
type Gateway interface {
	// NextID returns the ID of a new flow, distinct from those of connections.
	NextID() uint64
	// MaxFlows returns the limit on flows.
	MaxFlows() int
	// Off reports whether an operator has switched the gateway off.
	Off() bool
	// NamesPeer reports whether the policy names this very address.
	NamesPeer(a netip.Addr) bool
	// Proven reports that datagrams to a peer are now carried, and by which carrier.
	Proven(a netip.Addr, by report.Carrier)
	// NoCommonKey reports that a peer has no key in common with this gateway.
	NoCommonKey(a netip.Addr)
	// Ended receives the record of a flow that has ended.
	Ended(c report.ConnInfo)
}

// Provider is the devices of one kind: a network or a memory. The methods of both may block:
// the keeper calls them on its own goroutines.
type Provider interface {
	// Kind returns the carrier as peers are told of it.
	Kind() negotiate.CarrierKind
}

// network is a device whose peers are addresses, such as RoCEv2.
type network interface {
	Provider
	// DatagramsAt returns the device that has the local address and reaches the remote one from
	// it.
	DatagramsAt(local, remote netip.Addr) (carrier.DatagramDevice, error)
}

// memory is the device of peers that share memory with this host.
type memory interface {
	Provider
	// Datagrams returns the device that all peers share memory with, and its queue on a shard.
	Datagrams(s *loop.Shard) (carrier.DatagramDevice, *loop.Queue)
	// PeerFor returns the peer that was offered memory at this address, making the offer if
	// there is none. The error is carrier.ErrNotHere if the host there cannot take one.
	PeerFor(to netip.Addr, hold bool) (*carrier.ShmPeer, error)
	// Known returns the live peer with this key, or nil.
	Known(key [16]byte) *carrier.ShmPeer
	// Attach attaches to an offer that came from an address and returns its peer. It is
	// called on goroutines of its own, one per gateway.
	Attach(ctx context.Context, from netip.Addr, name string, key [16]byte) (*carrier.ShmPeer, error)
	// Hold keeps the device from dropping an idle peer until Leave is called.
	Hold(p *carrier.ShmPeer)
	Leave(p *carrier.ShmPeer)
}

var (
	_ network = (*carrier.Soft)(nil)
	_ network = (*carrier.Hardware)(nil)
	_ memory  = (*carrier.Shm)(nil)
)

// Providers returns those providers of connections that can carry datagrams.
func Providers(all []carrier.Provider) (list []Provider) {
	for _, prov := range all {
		if prov.Kind() != negotiate.CarrierIB { // datagrams cannot address an InfiniBand port
			list = append(list, prov)
		}
	}
	return list
}
