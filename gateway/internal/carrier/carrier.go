package carrier

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"sync/atomic"

	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/internal/loop"
	"github.com/smcgw/smcgw/gateway/internal/peers"
	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/negotiate"
	"github.com/smcgw/smcgw/rmb"
	"github.com/smcgw/smcgw/verbs"
	"github.com/smcgw/smcgw/verbs/hw/sysfs"
	"github.com/smcgw/smcgw/verbs/shm"
)

var (
	// ErrNotHere means that this carrier cannot reach the peer: no failure.
	ErrNotHere = errors.New("peer is under another kernel")
	// ErrNoAdapter is an ErrNotHere that is no word about the peer: no adapter of this host
	// has the connection's own address.
	ErrNoAdapter = fmt.Errorf("no adapter on this address: %w", ErrNotHere)
	// ErrTranslated is an ErrNotHere: the peer's soft device, which has the address that its
	// connection has there, is not at the address that the connection has here.
	ErrTranslated = fmt.Errorf("queue pair at another address: %w", ErrNotHere)
	// ErrNoDevice means that this host has no device on the connection's own address, or
	// not yet.
	ErrNoDevice = errors.New("no RDMA device on this address")
	// ErrYielded is why nothing new can be made of a device.
	ErrYielded = errors.New("left to the gateway that takes over")
	// ErrFull means that an adapter has as many queue pairs as it may.
	ErrFull = errors.New("limits.hw_flows reached")
	// ErrNoPath means that an InfiniBand subnet leads to no such peer, or does not say so in
	// time.
	ErrNoPath = errors.New("no path through the InfiniBand subnet")
	// ErrClosed means that the link has ended.
	ErrClosed = errors.New("link is closed")
	// errNoAdapters means that this host or this build cannot use adapters.
	errNoAdapters = errors.New("no RDMA adapters")
	// errNoAddrs means that the host has no network RDMA could run on.
	errNoAddrs = errors.New("host without network addresses")
)

// Env is what carriers need of the gateway.
type Env struct {
	Config    config.Config
	Log       *slog.Logger
	GatewayID [16]byte
	HostID    [16]byte
	Shards    []*loop.Shard
	Pool      *rmb.Pool
	Peers     *peers.Table
	// Addrs returns the addresses at which RDMA over UDP can be done now; nil: the host
	// has no network.
	Addrs func() ([]netip.Addr, error)
	// Route returns the number of the network device by which the host sends from one
	// address to another; nil: it is not known. An errno says that the host does not tell,
	// another error that the device is not the gateway's.
	Route func(from, to netip.Addr) (ifindex int, err error)
	// RoCE returns the addresses for which RDMA adapters of this host speak RoCE v2; nil:
	// it has none.
	RoCE func() (sysfs.RoCEPorts, error)
	// Priority is the SO_PRIORITY of the gateway's own sockets.
	Priority int
	// PeerDown is called when a peer that shares memory has hung up.
	PeerDown func(*shm.Peer)
	// Vacate ends the use of links: connections leave those of a kind that uses is true
	// of, handshakes come to their end first. hard: what is left falls back or is reset.
	// uses is called on the shard of the link.
	Vacate func(kind negotiate.CarrierKind, uses func(*Link) bool, hard bool)

	// Withdrawn is called before an adapter is closed: what else uses it ends that.
	Withdrawn func(verbs.Device)
	// Adapters finds the RDMA adapters of the host; nil: by libibverbs.
	Adapters Adapters

	subnet  subnet       // knows InfiniBand subnets; nil: by the kernel
	growing atomic.Int64 // bytes of larger rings that are being allocated
	failed  completionErrors
}

// Answered is told the link of a server's connection, which is connected to the client's,
// and how to reach it; or why there is none.
type Answered func(l *Link, offer negotiate.CarrierOffer, err error)

// Provider has the devices of one kind, as the negotiation sees them. Meet, Offer and Close
// may block. The others must not, since the connection's shard may call them.
type Provider interface {
	Kind() negotiate.CarrierKind
	// Offer makes the link of a client's connection and says how to reach it.
	Offer(r Request) (*Link, negotiate.CarrierOffer, error)
	// Met reports whether Answer needs no more than it has; otherwise Meet is called
	// before. The peer at an address is known from then on, whatever becomes of the
	// connection.
	Met(from negotiate.CarrierOffer, p *negotiate.Proposal) bool
	Meet(ctx context.Context, peer netip.Addr, from negotiate.CarrierOffer) error
	// Answer makes the link of a server's connection and connects it to the client's.
	// It is called on the shard, and calls done there once, maybe before it returns.
	Answer(r Request, from negotiate.CarrierOffer, p *negotiate.Proposal, done Answered)
	// Devices describes what there is.
	Devices() []report.DeviceInfo
	// Close ends the device; no link uses it any more, and the shards have stopped.
	Close() error
}

// Prompt is a device whose Offer mostly has all that it needs.
type Prompt interface {
	// OffersAtOnce reports whether Offer would not block.
	OffersAtOnce(r *Request) bool
}

// Adapted is a carrier on RDMA adapters.
type Adapted interface {
	// HasAdapter reports whether one of them carries now.
	HasAdapter() bool
}

// HasAdapter reports whether a carrier is on RDMA adapters, and one of them carries now.
func HasAdapter(prov Provider) bool {
	a, ok := prov.(Adapted)
	return ok && a.HasAdapter()
}

// Exclusive is a kind of device that only one gateway of a host can have.
type Exclusive interface {
	// GiveUp ends the device. Connections it carries go on without it or end,
	// handshakes fall back.
	GiveUp() error
	// Reclaim opens the device again.
	Reclaim() error
}

// Open opens the devices of the configuration, in its order. A device that cannot be
// opened is left out, and absent describes it.
func Open(env *Env) (list []Provider, absent []report.DeviceInfo) {
	open := map[report.DeviceKind]func(*Env) (Provider, error){report.DeviceShm: openShm, report.DeviceHW: openHW, report.DeviceIB: openIB, report.DeviceSoft: openSoft}
	for _, kind := range env.Config.Carriers {
		prov, err := open[kind](env)
		switch {
		case errors.Is(err, errNoAddrs), errors.Is(err, errNoAdapters):
			env.Log.Info("carrier not on this host", "carrier", kind, "reason", err)
			absent = append(absent, missing(kind, report.DeviceAbsent, err.Error()))
		case err != nil:
			env.Log.Warn("carrier left out", "carrier", kind, "error", err)
			absent = append(absent, missing(kind, report.DeviceFailed, err.Error()))
		default:
			list = append(list, prov)
		}
	}
	return list, absent
}

// missing describes a device that was asked for in vain.
func missing(kind report.DeviceKind, state report.DeviceState, why string) report.DeviceInfo {
	return report.DeviceInfo{Name: string(kind) + "0", Kind: kind, Carrier: kind.Carrier(), State: state, Error: why}
}
